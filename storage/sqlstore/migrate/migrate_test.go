package migrate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestUpFresh(t *testing.T) {
	t.Parallel()
	pool, _ := setup(t)
	m := newMigrator(t, Config{DB: pool})
	s, err := m.Status(t.Context())
	if err != nil || s.Version != 0 || s.Known != 5 || len(s.Pending) != len(allIDs) || s.Newer || s.Holder != "" {
		t.Fatalf("status of nothing: %+v, %v", s, err)
	}
	if got := dump(t, pool, true); got != "nothing yet\n" {
		t.Fatalf("status left something behind: %s", got)
	}
	mustUp(t, m, allIDs...)
	s, err = m.Status(t.Context())
	if err != nil || s.Version != 5 || len(s.Pending) != 0 || s.Newer || s.Holder != "" {
		t.Fatalf("status after up: %+v, %v", s, err)
	}
	got := dump(t, pool, true)
	for _, want := range []string{"1 5 0  1\n", "3 1 003_zones.cockroach.sql ", "2 1 002_owners.postgres.sql ", "things_owner_idx", "1\n3\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	// Twice is nothing: not a row is written.
	mustUp(t, m)
	if again := dump(t, pool, true); again != got {
		t.Errorf("second up changed something:\n%s", again)
	}
}

// TestUpOnlyReads: where nothing is missing, a role needs no right to write.
func TestUpOnlyReads(t *testing.T) {
	t.Parallel()
	pool, url := setup(t)
	mustUp(t, newMigrator(t, Config{DB: pool}), allIDs...)
	reader := connect(t, url+"&default_transaction_read_only=on")
	m := newMigrator(t, Config{DB: reader})
	mustUp(t, m)
	if _, err := m.Status(t.Context()); err != nil {
		t.Error(err)
	}
	if err := Check(t.Context(), reader, 5); err != nil {
		t.Error(err)
	}
}

// TestUpGrows: a release at a time comes to the same as all at once.
func TestUpGrows(t *testing.T) {
	t.Parallel()
	pool, _ := setup(t)
	steps := load(t, Postgres, nil)
	for n := range steps {
		mustUp(t, newMigrator(t, Config{DB: pool, Steps: steps[:n+1]}), steps[n].ID())
	}
	other, _ := setup(t)
	mustUp(t, newMigrator(t, Config{DB: other}), allIDs...)
	if got, want := dump(t, pool, false), dump(t, other, false); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestUpTogether(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 8} {
		for round := range 4 {
			t.Run(fmt.Sprintf("%d/%d", n, round), func(t *testing.T) {
				t.Parallel()
				_, url := setup(t)
				pool := connect(t, url+"&default_transaction_isolation="+[]string{"serializable", "read%20committed"}[round%2])
				var mu sync.Mutex
				var all []string
				ran := map[string]int{}
				shared := newMigrator(t, Config{DB: &hooked{pool: pool, around: func(_ context.Context, _ int, sql string, run func() error) error {
					err := run()
					mu.Lock()
					defer mu.Unlock()
					if err == nil {
						ran[sql]++
					}
					return err
				}}, Lease: 20 * time.Second})
				var ups sync.WaitGroup
				for range n {
					ups.Go(func() { // one Migrator, so one owner's name, for all
						applied, err := shared.Up(t.Context())
						if err != nil {
							t.Error(err)
						}
						mu.Lock()
						defer mu.Unlock()
						all = append(all, ids(applied)...)
					})
				}
				ups.Wait()
				if strings.Join(all, " ") != strings.Join(allIDs, " ") {
					t.Errorf("applied %v", all)
				}
				for _, s := range load(t, Postgres, nil) {
					if s.SQL != "" && ran[s.SQL] != 1 {
						t.Errorf("%s ran %d times", s.ID(), ran[s.SQL])
					}
				}
			})
		}
	}
}

func TestChangedFiles(t *testing.T) {
	t.Parallel()
	pool, _ := setup(t)
	mustUp(t, newMigrator(t, Config{DB: pool}), allIDs...)
	want := dump(t, pool, true)
	things := files["001_things.sql"]
	for name, c := range map[string]struct {
		file, text string
		refused    string // as part of the error; empty: it is not
	}{
		"another statement": {"001_things.sql", strings.Replace(things, "'none'", "'some'", 1), "statement 1 of 001_things.sql is not what ran"},
		"the second":        {"001_things.sql", strings.Replace(things, "things (name)", "things (name, id)", 1), "statement 2 of 001_things.sql is not"},
		"one more":          {"001_things.sql", things + "DROP TABLE IF EXISTS things;\n", "statement 3 of 001_things.sql was added"},
		"one fewer":         {"004_more.sql", files["004_more.sql"][:strings.LastIndex(files["004_more.sql"], "ALTER TABLE")], "statement 3 of 004_more.sql ran and is no longer"},
		"not of dialect":    {"003_zones.cockroach.sql", "-- only: so\nDROP TABLE IF EXISTS zones;\n", ""},
		"a comment":         {"001_things.sql", "-- Better words.\n" + strings.ReplaceAll(things, "-- of the thing", "-- its name"), ""},
		"line ends":         {"001_things.sql", strings.ReplaceAll(things, "\n", "\r\n"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			changed := load(t, Postgres, map[string]string{c.file: c.text, "006_new.sql": "DROP TABLE IF EXISTS things;\n"})
			if c.refused == "" {
				changed = load(t, Postgres, map[string]string{c.file: c.text})
			}
			m := newMigrator(t, Config{DB: pool, Steps: changed})
			applied, err := m.Up(t.Context())
			_, statusErr := m.Status(t.Context())
			for _, err := range []error{err, statusErr} {
				if c.refused == "" && err != nil {
					t.Error(err)
				}
				if c.refused != "" && (!errors.Is(err, ErrChanged) || !strings.Contains(err.Error(), c.refused)) {
					t.Errorf("got %v, want %s", err, c.refused)
				}
			}
			if got := dump(t, pool, true); got != want || len(applied) > 0 {
				t.Errorf("applied %v, left\n%s", applied, got)
			}
		})
	}
}

func TestSchemaNewer(t *testing.T) {
	t.Parallel()
	steps := load(t, Postgres, nil)
	for name, c := range map[string]struct {
		applied, known int
		newer          bool
		version        int64
	}{
		"whole file":   {9, 4, true, 5},
		"part of next": {5, 4, true, 3},
		"the same":     {4, 4, false, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, _ := setup(t)
			mustUp(t, newMigrator(t, Config{DB: pool, Steps: steps[:c.applied]}), allIDs[:c.applied]...)
			m := newMigrator(t, Config{DB: pool, Steps: steps[:c.known]})
			s, err := m.Status(t.Context())
			if err != nil || s.Newer != c.newer || s.Version != c.version || s.Known != 3 || len(s.Pending) != 0 {
				t.Errorf("status %+v, %v", s, err)
			}
			want := dump(t, pool, true)
			mustUp(t, m)
			if got := dump(t, pool, true); got != want {
				t.Errorf("changed to\n%s", got)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	pool, _ := setup(t)
	steps := load(t, Postgres, nil)
	check := func(need int64, ok bool) {
		t.Helper()
		err := Check(t.Context(), pool, need)
		if ok && err != nil {
			t.Errorf("need %d: %v", need, err)
		}
		if !ok && (!errors.Is(err, ErrOld) || !strings.Contains(err.Error(), "run `warifu migrate up`")) {
			t.Errorf("need %d: %v", need, err)
		}
	}
	check(1, false)
	mustExec(t, pool, createSteps)
	mustExec(t, pool, createSchema)
	check(1, false) // the row is missing
	mustUp(t, newMigrator(t, Config{DB: pool, Steps: steps[:6]}), allIDs[:6]...)
	check(3, true)
	check(4, false) // two of its statements are missing
	mustUp(t, newMigrator(t, Config{DB: pool}), allIDs[6:]...)
	check(4, true)
	check(5, true)
	check(6, false)
}

func TestNewChecks(t *testing.T) {
	t.Parallel()
	pool, _ := setup(t)
	steps := load(t, Postgres, nil)
	for name, c := range map[string]struct {
		config Config
		want   string
	}{
		"everything": {Config{Lease: time.Millisecond, WaitMax: -1}, "no DB\nno Steps\na Lease of 1ms is shorter than 100ms\na WaitMax of -1ns"},
		"a hole":     {Config{DB: pool, Steps: append(append([]Step{}, steps[:3]...), steps[4:]...)}, "step 004.1 does not follow"},
		"no start":   {Config{DB: pool, Steps: steps[1:]}, "step 001.2 does not follow"},
	} {
		if _, err := New(c.config); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
