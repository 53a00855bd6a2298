package main

import (
	"path/filepath"
	"testing"

	"github.com/warifu/warifu/loadtest/measure"
	"github.com/warifu/warifu/loadtest/ratio"
)

// TestSmokeSQL runs what needs a PostgreSQL and no server of ours.
func TestSmokeSQL(t *testing.T) {
	t.Parallel()
	o := &options{pairs: 1, seconds: 0.5, completed: 1000, growth: 1000, updated: 1000}
	for _, e := range []experiment{{"P6-sql", p6SQL}, {"growth", growth}, {"updates", updates}} {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			f := &folder{name: e.name, dir: filepath.Join(t.TempDir(), e.name), opts: o}
			t.Cleanup(func() {
				if err := f.close(); err != nil {
					t.Error(err)
				}
			})
			r, err := f.run(t.Context(), e, func(string) {})
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range r.Floors {
				number := func(s *measure.Sample) float64 { return s.Extra[f.Key] }
				if got := r.Of(f.Side, number).Median; got <= 0 && !mayBeZero[f.Side+f.Key] {
					t.Errorf("%s: %v", f.What, got)
				}
			}
			checkSQL[e.name](t, r)
		})
	}
}

// mayBeZero are numbers, by side and key, that are zero when all is well.
var mayBeZero = map[string]bool{
	"100 % duplicates, filter on" + insertedShare: true,
	"100 % duplicates, filter on" + logPerKey:     true,
	"100 % duplicates, filter off" + logPerKey:    true,
	"partial index of expiries" + hotShare:        true,
	"fill factor 100" + hotShare:                  true,
}

// checkSQL is what the numbers of each experiment have to show on any machine.
var checkSQL = map[string]func(*testing.T, *ratio.Result){
	"P6-sql": func(t *testing.T, r *ratio.Result) {
		t.Helper()
		for side, want := range map[string][2]float64{ // trips, share of keys inserted
			"0 % duplicates, filter off":   {1, 100},
			"50 % duplicates, filter off":  {1, 100},
			"50 % duplicates, filter on":   {2, 50},
			"100 % duplicates, filter off": {1, 100},
			"100 % duplicates, filter on":  {1, 0},
		} {
			got := r.Samples[side][0].Extra
			// A false positive is read, and then inserted all the same.
			if got[tripsPerBatch] != want[0] || got[insertedShare] != want[1] {
				t.Errorf("%s: %v trips and %v %% inserted, want %v", side, got[tripsPerBatch], got[insertedShare], want)
			}
		}
	},
	"growth": func(*testing.T, *ratio.Result) {},
	"updates": func(t *testing.T, r *ratio.Result) {
		t.Helper()
		of := func(layout string) map[string]float64 { return r.Samples[layout][0].Extra }
		plain, partial, roomy := of(layouts[0].name), of("partial index of expiries"), of("fill factor 40")
		if plain[hotShare] < 30 || partial[hotShare] != 0 || roomy[hotShare] < 90 {
			t.Errorf("updates that touch no index: %v %%, with the partial one %v %%, with more room %v %%",
				plain[hotShare], partial[hotShare], roomy[hotShare])
		}
		if plain[logPerCompletion] >= partial[logPerCompletion] {
			t.Errorf("log per completion: %v and %v bytes", plain[logPerCompletion], partial[logPerCompletion])
		}
	},
}

// TestSmokeRows: events are inserted one by one, and counted.
func TestSmokeRows(t *testing.T) {
	t.Parallel()
	f := &folder{name: "rows", dir: t.TempDir(), opts: &options{seconds: 0.2}}
	t.Cleanup(func() {
		if err := f.close(); err != nil {
			t.Error(err)
		}
	})
	db, err := f.startPostgres(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := makeEvents(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	s, err := db.side(f, "rows", plainTable, db.job("sql-rows", db.url, 8)).Measure(t.Context(), 0)
	if err != nil || s.Ops == 0 || s.Extra[madeClaims] < float64(s.Ops) || s.DatabaseCPU == 0 || s.Extra[writesPerCommit] < 0.9 || s.Extra[writesPerCommit] > 1 {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := db.side(f, "rows", `SELECT count(*) - 1, 0 FROM events LIMIT 1`, db.job("sql-rows", db.url, 1)).Measure(t.Context(), 0); err != nil {
		t.Errorf("one row fewer before and after: %v", err)
	}
	if _, err := db.side(f, "rows", `SELECT 2 * count(*), 0 FROM events`, db.job("sql-rows", db.url, 1)).Measure(t.Context(), 0); err == nil {
		t.Error("rows that nobody made went unnoticed")
	}
}

func TestCheckRows(t *testing.T) {
	t.Parallel()
	made := map[string]float64{madeClaims: 5, madeCompletions: 2}
	if err := checkRows(rows{10, 1}, rows{15, 3}, made); err != nil {
		t.Error(err)
	}
	for _, after := range []rows{{14, 3}, {16, 3}, {15, 2}, {15, 4}} {
		if checkRows(rows{10, 1}, after, made) == nil {
			t.Errorf("%+v went unnoticed", after)
		}
	}
}

func TestUse(t *testing.T) {
	t.Parallel()
	good := use{entries: 40, inserted: 10, updated: 10}
	if err := good.check(10); err != nil {
		t.Error(err)
	}
	for name, spoil := range map[string]func(*use){
		"TableScanned":    func(u *use) { u.seqScans = 1 },
		"ExpiryIndexUsed": func(u *use) { u.expiryScans = 1 },
		"WideScan":        func(u *use) { u.entries = 100 },
		"RowMissing":      func(u *use) { u.inserted = 9 },
		"NotCompleted":    func(u *use) { u.updated = 9 },
	} {
		bad := good
		if spoil(&bad); bad.check(10) == nil {
			t.Errorf("%s: went unnoticed", name)
		}
	}
}

// TestLookUps: with an index in another order than the primary key's, nothing
// fails, and pages of keys are found by reading all of the table.
func TestLookUps(t *testing.T) {
	t.Parallel()
	f := &folder{name: "plans", dir: t.TempDir(), opts: &options{}}
	t.Cleanup(func() {
		if err := f.close(); err != nil {
			t.Error(err)
		}
	})
	db, err := f.startPostgres(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := grown(t.Context(), db.url, growthLeast); err != nil {
		t.Fatal(err)
	}
	if _, err := db.admin.Exec(t.Context(), `ALTER TABLE claims DROP CONSTRAINT claims_pkey, ADD UNIQUE (event_id, consumer, tenant_id, shard)`); err != nil {
		t.Fatal(err)
	}
	if lookUps(t.Context(), db.url) == nil {
		t.Error("reading all of the table went unnoticed")
	}
}
