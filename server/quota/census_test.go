package quota

import (
	"encoding/json"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

// TestOneCountsForAll: two replicas, one round per interval, and both know.
func TestOneCountsForAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		w.fill(1, "mail", 2300)
		w.fill(1, "bill", 40)
		w.fill(3, "mail", 7)
		a, b := w.replica("a"), w.replica("b")
		time.Sleep(2 * LookDefault)
		for name, r := range map[string]*replica{"a": a, "b": b} {
			u := r.quotas.Usage(1, &Limits{Keys: 5})
			if u.Keys != 2340 || u.Live != 2340 || u.Bytes < 2340*200 || u.Age <= 0 || u.Age > 2*LookDefault || u.Limits.Keys != 5 {
				t.Errorf("%s: %+v", name, u)
			}
			if lines := u.Report.Consumers; len(lines) != 2 || lines[0].Name != "mail" || lines[0].Keys != 2300 || lines[1].Keys != 40 {
				t.Errorf("%s: %+v", name, lines)
			}
			if n := r.quotas.Usage(3, &Limits{}).Keys; n != 7 {
				t.Errorf("%s: tenant 3 has %d keys", name, n)
			}
		}
		w.fill(3, "late", 1)
		a.quotas.Note(3, Delta{Keys: 1})
		if x, y := a.quotas.Usage(3, &Limits{}).Keys, b.quotas.Usage(3, &Limits{}).Keys; x != 8 || y != 7 {
			t.Errorf("between two rounds: %d where it was seen, %d elsewhere", x, y)
		}
		time.Sleep(IntervalDefault + LookDefault)
		if x, y := a.quotas.Usage(3, &Limits{}).Keys, b.quotas.Usage(3, &Limits{}).Keys; x != 8 || y != 8 {
			t.Errorf("a round later: %d and %d", x, y)
		}
		time.Sleep(2 * IntervalDefault)
		rounds := int(a.Stats().Rounds + b.Stats().Rounds)
		if rounds < 3 || rounds > 4 {
			t.Errorf("%d rounds in %v", rounds, 3*IntervalDefault)
		}
		w.set(func() { // what is known is neither written nor read again
			if w.mu.applied != rounds || w.mu.pages > 3*rounds {
				t.Errorf("%d changes and %d pages in %d rounds", w.mu.applied, w.mu.pages, rounds)
			}
		})
		if f := a.Stats().Failures + b.Stats().Failures; f != 0 {
			t.Errorf("%d failures", f)
		}
	})
}

// TestRoundGoesOnElsewhere: what a replica has published before it ended is not
// counted again.
func TestRoundGoesOnElsewhere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 120)
		reached := make(chan struct{})
		w.set(func() {
			w.mu.tally = func(id claim.TenantID) error {
				if id == 60 {
					close(reached)
					time.Sleep(time.Second)
				}
				return nil
			}
		})
		a := w.replica("a")
		<-reached
		w.set(func() { w.mu.tally = nil })
		a.stop()
		leases, err := w.Leases(t.Context())
		if err != nil || leases.Leases[0].Owner != "" {
			t.Errorf("the lease was not given back: %+v, %v", leases, err)
		}
		// b has not heard of tenant 10 yet, which does not mean that it is gone.
		b := w.replicaOf("b", func() []Tenant { return slices.Delete(w.tenants(), 9, 10) })
		time.Sleep(LookDefault)
		counts := map[claim.TenantID]int{}
		w.set(func() {
			for _, id := range w.mu.tallied {
				counts[id]++
			}
		})
		for id := claim.TenantID(1); id <= 120; id++ {
			want := 1
			if id > publishRowsMax && id <= 60 { // counted and not published
				want = 2
			}
			if counts[id] != want {
				t.Errorf("tenant %d was counted %d times, want %d", id, counts[id], want)
			}
		}
		if u := b.quotas.Usage(1, &Limits{}); u.Report == nil {
			t.Error("b does not know what a has counted")
		}
		if len(w.jobs(registry.JobRunning)) != 120 || b.Stats().Rounds != 1 {
			t.Errorf("%d reports, %+v", len(w.jobs(registry.JobRunning)), b.Stats())
		}
	})
}

// TestFindings: raised at 80 %, once for a month, whoever counts.
func TestFindings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.fill(1, "mail", 80)
		w.fill(2, "mail", 79)
		w.set(func() {
			for i := range w.mu.tenants {
				w.mu.tenants[i].Limits = Limits{Keys: 100, LiveLeases: 1, InDoubt: 10}
			}
		})
		a := w.replica("a")
		time.Sleep(IntervalDefault + 2*LookDefault)
		found := w.findings()
		if len(found) != 1 || found[0].Tenant != 1 || found[0].Kind != "quota.keys" || found[0].State != registry.FindingOpen {
			t.Fatalf("findings: %+v", found)
		}
		var d findingDetails
		if err := json.Unmarshal(found[0].Details, &d); err != nil || d != (findingDetails{"keys", 80, 100}) {
			t.Errorf("details: %+v, %v", d, err)
		}
		a.stop()
		f := found[0]
		f.State = registry.FindingResolved
		if _, err := w.Apply(t.Context(), registry.Change{ID: newChangeID(), Findings: []registry.Write[registry.Finding]{registry.Put(f)}}); err != nil {
			t.Fatal(err)
		}
		b := w.replica("b") // does not remember
		time.Sleep(2 * IntervalDefault)
		if found := w.findings(); len(found) != 1 || found[0].State != registry.FindingResolved || b.Stats().Failures != 0 {
			t.Errorf("resolved, and then: %+v, %+v", found, b.Stats())
		}
		w.set(func() { w.mu.tenants[1].Limits.Bytes = 79*200 + 100 })
		time.Sleep(IntervalDefault + LookDefault)
		if found := w.findings(); len(found) != 2 {
			t.Errorf("another quota: %d findings", len(found))
		}
		b.stop() // nobody counts until ten minutes before the month ends
		now := time.Now().UTC()
		time.Sleep(time.Date(now.Year(), now.Month()+1, 1, 0, -10, 0, 0, time.UTC).Sub(now))
		w.replica("c")
		time.Sleep(2 * LookDefault)
		if found := w.findings(); len(found) != 2 {
			t.Errorf("still the same month: %d findings", len(found))
		}
		time.Sleep(20 * time.Minute)
		if found := w.findings(); len(found) != 4 {
			t.Errorf("the next month: %d findings", len(found))
		}
	})
}

func TestNear(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		used, limit int64
		want        bool
	}{{80, 100, true}, {79, 100, false}, {4, 5, true}, {3, 5, false}, {1 << 60, 0, false}, {0, 1, false}, {1, 1, true}, {1 << 62, 1 << 62, true}} {
		if got := near(row.used, row.limit); got != row.want {
			t.Errorf("%d of %d: %v", row.used, row.limit, got)
		}
	}
}

// TestTenantsComeAndGo: the row of a tenant that is gone ends and says nothing
// more of it, unless another replica still counts it; one that comes back goes
// on.
func TestTenantsComeAndGo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.fill(2, "mail", 5)
		a := w.replica("a")
		time.Sleep(LookDefault)
		all := w.tenants()
		w.set(func() { w.mu.tenants = all[:1] })
		time.Sleep(2 * IntervalDefault)
		if running := w.jobs(registry.JobRunning); len(running) != 1 {
			t.Errorf("%d rows are running", len(running))
		}
		ended := w.jobs(registry.JobDone)
		if j := ended[2]; len(ended) != 1 || j.Kind != JobKind || len(j.Params) != 0 {
			t.Errorf("ended: %+v", ended)
		}
		if u := a.quotas.Usage(2, &Limits{}); u.Keys != 0 {
			t.Errorf("it is remembered: %+v", u)
		}
		w.set(func() { w.mu.tenants = all })
		time.Sleep(IntervalDefault + LookDefault)
		if running := w.jobs(registry.JobRunning); len(running) != 2 {
			t.Errorf("it is back, and %d rows are running", len(running))
		}
		if u := a.quotas.Usage(2, &Limits{}); u.Keys != 5 || a.Stats().Failures != 0 {
			t.Errorf("it is back: %+v, %+v", u, a.Stats())
		}
	})
}

// TestEndMeetsAnother: a row that somebody else wrote is ended a round later.
func TestEndMeetsAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		a := w.replica("a")
		time.Sleep(LookDefault)
		j := w.jobs(registry.JobRunning)[2]
		if _, err := w.Apply(t.Context(), registry.Change{ID: newChangeID(), Jobs: []registry.Write[registry.Job]{registry.Put(j)}}); err != nil {
			t.Fatal(err)
		}
		w.set(func() { w.mu.tenants = w.mu.tenants[:1] })
		time.Sleep(3*IntervalDefault + LookDefault)
		if ended := w.jobs(registry.JobDone); len(ended) != 1 || a.Stats().Failures != 0 {
			t.Errorf("ended: %+v, %+v", ended, a.Stats())
		}
	})
}
