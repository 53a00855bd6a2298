package quota

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

// TestFaultsOfTheRegistry: a lost answer is asked for with the same change; a
// registry that is away costs a round and nothing else.
func TestFaultsOfTheRegistry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		w.fill(1, "mail", 5)
		sent := map[registry.ID]int{}
		w.set(func() {
			w.mu.apply = func(c registry.Change) (before, after error) {
				if sent[c.ID]++; len(sent) == 1 && sent[c.ID] == 1 {
					return nil, storage.ErrUnknown
				}
				return nil, nil
			}
		})
		a := w.replica("a")
		time.Sleep(LookDefault)
		if s := a.Stats(); s.Rounds != 1 || s.Failures != 0 || len(sent) != 1 || slices.Max(slices.Collect(maps.Values(sent))) != 2 {
			t.Errorf("a lost answer: %+v, %v", s, sent)
		}
		w.set(func() {
			w.mu.apply = func(registry.Change) (before, after error) { return storage.ErrUnavailable, nil }
		})
		w.fill(1, "more", 1)
		time.Sleep(IntervalDefault + 2*LookDefault)
		if s := a.Stats(); s.Rounds != 1 || s.Failures == 0 {
			t.Errorf("away: %+v", s)
		}
		w.set(func() { w.mu.apply = nil })
		time.Sleep(2 * LookDefault)
		if s, u := a.Stats(), a.quotas.Usage(1, &Limits{}); s.Rounds != 2 || u.Keys != 6 {
			t.Errorf("back: %+v, %+v", s, u)
		}
	})
}

// TestFaultsOfTheStore: a tenant that cannot be counted does not keep the
// others from it; a store that is away ends the round.
func TestFaultsOfTheStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 10)
		w.set(func() {
			w.mu.tally = func(id claim.TenantID) error {
				if id == 4 || id == 5 {
					return storage.ErrUnavailable
				}
				return nil
			}
		})
		a := w.replica("a")
		time.Sleep(LookDefault)
		if s := a.Stats(); s.Rounds != 1 || s.Tenants != 8 || s.Failures != 2 {
			t.Errorf("two tenants fail: %+v", s)
		}
		w.set(func() { w.mu.tally, w.mu.tallied = func(claim.TenantID) error { return storage.ErrUnavailable }, nil })
		time.Sleep(IntervalDefault)
		w.set(func() {
			if n := len(w.mu.tallied); n == 0 || n%failuresMax != 0 || n > 3*failuresMax {
				t.Errorf("a store that is away was asked %d times", n)
			}
			w.mu.tally = nil
		})
		time.Sleep(2 * LookDefault)
		if s := a.Stats(); s.Rounds != 2 || s.Tenants != 18 {
			t.Errorf("back: %+v", s)
		}
	})
}

// TestLostLease: whoever lost the lease writes no more reports.
func TestLostLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		w.set(func() {
			w.mu.tally = func(id claim.TenantID) error {
				if id != 2 {
					return nil
				}
				time.Sleep(2 * leaseTTL) // the machine was paused; somebody else has it
				_, held, err := w.Lease(t.Context(), LeaseName, "b", leaseTTL)
				if !held || err != nil {
					t.Errorf("held %v, %v", held, err)
				}
				return nil
			}
		})
		a := w.replica("a")
		time.Sleep(2*leaseTTL + restMax + time.Second)
		if s := a.Stats(); s.Rounds != 0 || s.Tenants != 0 || s.Failures != 1 || // the call that took too long
			len(w.jobs(registry.JobRunning)) != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestStepsRest: counting takes at most a quarter of the time.
func TestStepsRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.fill(1, "mail", 9500)
		const step = 200 * time.Millisecond
		w.set(func() { w.mu.tally = func(claim.TenantID) error { time.Sleep(step); return nil } })
		a := w.replica("a")
		time.Sleep(10*step*(1+restShare) - step)
		if s := a.Stats(); s.Rounds != 0 || s.Steps != 10 {
			t.Errorf("too early: %+v", s)
		}
		time.Sleep(step)
		synctest.Wait()
		if s := a.Stats(); s.Rounds != 1 {
			t.Errorf("too late: %+v", s)
		}
		time.Sleep(IntervalDefault + LookDefault)
		w.set(func() {
			if a.Stats().Rounds != 2 || w.mu.pages != 0 || w.mu.applied != 2 || w.mu.taken > 6 {
				t.Errorf("in two rounds: %d pages read, %d changes made, the lease taken %d times", w.mu.pages, w.mu.applied, w.mu.taken)
			}
		})
	})
}

func TestRunOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newWorld(t, 0).replica("a")
		time.Sleep(time.Second)
		if err := a.Run(t.Context()); err == nil {
			t.Error("Run ran twice")
		}
		a.stop()
		if s := a.Stats(); s.Rounds != 1 {
			t.Errorf("a round over nobody: %+v", s)
		}
	})
}

// TestReportIsBounded: whatever names a tenant makes up, the largest are named,
// nothing is lost, and a full change of the largest rows is taken.
func TestReportIsBounded(t *testing.T) {
	t.Parallel()
	var sum tally
	name := func(i int) string { return fmt.Sprintf("%0*d", claim.ConsumerCharsMax, i) }
	const each = 1 << 52
	for from := 0; from < 3*consumersCounted; from += 500 {
		step := storage.Tallied{Now: each, Counts: map[string]storage.Counts{}}
		for i := from; i < from+500; i++ {
			step.Counts[name(i)] = storage.Counts{Keys: 1, Bytes: int64(i % consumersCounted), Live: 2, Lapsed: 3, InDoubt: 4, Completed: 5}
		}
		sum.add(&step)
	}
	if len(sum.consumers) != consumersCounted {
		t.Errorf("%d consumers are counted apart", len(sum.consumers))
	}
	r := sum.done()
	named := Counts{}
	for _, c := range r.Consumers {
		named = Counts(storage.Counts(named).Plus(storage.Counts(c.Counts)))
	}
	if len(r.Consumers) != ConsumersMax || r.Consumers[0].Name != name(consumersCounted-1) || named.Keys != ConsumersMax {
		t.Errorf("%d consumers, first %q", len(r.Consumers), r.Consumers[0].Name)
	}
	if all := Counts(storage.Counts(named).Plus(storage.Counts(r.Rest))); all != r.Total || all.Keys != 3*consumersCounted || all.Completed != 15*consumersCounted {
		t.Errorf("named and rest are %+v of %+v", all, r.Total)
	}
	change := registry.Change{ID: newChangeID()}
	for i := range r.Consumers {
		r.Consumers[i].Counts = Counts{each, each, each, each, each, each}
	}
	r.Total, r.Rest = r.Consumers[0].Counts, r.Consumers[0].Counts
	params, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for id := claim.TenantID(1); id <= publishRowsMax; id++ {
		change.Jobs = append(change.Jobs, registry.Put(registry.Job{ID: JobID(id), Tenant: id, Kind: JobKind, State: registry.JobRunning, Params: params}))
	}
	if _, err := change.Prepare(); err != nil {
		t.Errorf("the largest change: %v", err)
	}
}
