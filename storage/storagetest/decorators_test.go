package storagetest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storagetest"
)

func request(event string) claim.Request {
	return claim.Request{
		Key: claim.Key{Tenant: 1, Consumer: "c", EventID: event}, Attempt: claim.AttemptID{1}, InsertBefore: claim.Never,
		Lease: time.Second, Policy: claim.Policy{Window: time.Second, Retention: time.Minute},
	}
}

func newModel() *storagetest.Model {
	return storagetest.NewModel(storagetest.NewClock(storagetest.Start).Now, time.Minute)
}

// stored reports whether the store holds the event, by a look that no
// decorator sees.
func stored(t *testing.T, m *storagetest.Model, event string) bool {
	t.Helper()
	found, err := m.Get(t.Context(), []claim.Key{request(event).Key})
	if err != nil {
		t.Fatal(err)
	}
	return found[0].Record.State != claim.Absent
}

// TestDecoratorsThatDoNothing: a decorator that lets everything pass conforms.
func TestDecoratorsThatDoNothing(t *testing.T) {
	t.Parallel()
	storagetest.Run(t, func(_ storagetest.T, clock *storagetest.Clock, grace time.Duration) storage.Store {
		model := storagetest.NewModel(clock.Now, grace)
		return storagetest.NewCounting(storagetest.NewFaulty(model, func(context.Context, storagetest.Call) storagetest.Fault {
			return storagetest.Fault{}
		}))
	})
}

func TestFaulty(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		fault   storagetest.Fault
		err     error
		applied bool
	}{
		{"before", storagetest.Fault{Before: storage.ErrUnavailable}, storage.ErrUnavailable, false},
		{"after", storagetest.Fault{After: storage.ErrUnknown}, storage.ErrUnknown, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			model := newModel()
			f := storagetest.NewFaulty(model, storagetest.FaultAt(storagetest.InsertOrGet, 1, c.fault))
			for i, event := range []string{"0", "1", "2"} {
				_, err := f.InsertOrGet(t.Context(), []claim.Request{request(event)})
				if want := i == 1; (err != nil) != want || (want && !errors.Is(err, c.err)) {
					t.Errorf("call %d: error %v", i, err)
				}
			}
			if stored(t, model, "1") != c.applied || !stored(t, model, "0") || !stored(t, model, "2") {
				t.Errorf("applied: %t, want %t", stored(t, model, "1"), c.applied)
			}
		})
	}
}

func TestFaultyItems(t *testing.T) {
	t.Parallel()
	model := newModel()
	between := false
	f := storagetest.NewFaulty(model, func(_ context.Context, c storagetest.Call) storagetest.Fault {
		if len(c.Keys) != 4 || c.Keys[3].EventID != "3" || c.Method != storagetest.InsertOrGet {
			t.Errorf("asked about %+v", c)
		}
		return storagetest.Fault{
			Withhold: map[int]error{0: storage.ErrFull, 2: storage.ErrUnavailable},
			Lose:     map[int]error{1: storage.ErrUnknown},
			Then:     func() { between = stored(t, model, "3") },
		}
	})
	found, err := f.InsertOrGet(t.Context(), []claim.Request{request("0"), request("1"), request("2"), request("3")})
	if err != nil || !between {
		t.Fatalf("error %v, applied when Then is called: %t", err, between)
	}
	for i, want := range []struct {
		err    error
		stored bool
	}{{storage.ErrFull, false}, {storage.ErrUnknown, true}, {storage.ErrUnavailable, false}, {nil, true}} {
		event := request(string(rune('0' + i))).Key.EventID
		if !errors.Is(found[i].Err, want.err) || stored(t, model, event) != want.stored {
			t.Errorf("item %d: error %v, stored %t", i, found[i].Err, stored(t, model, event))
		}
	}
	if found[3].Record.Key.EventID != "3" {
		t.Errorf("item 3 is %+v", found[3].Record.Key)
	}
}

// TestFaultyReachesEveryMethod: what is hooked can fail, before and after.
func TestFaultyReachesEveryMethod(t *testing.T) {
	t.Parallel()
	none := func(claim.Key) error { return nil }
	for method, call := range map[storagetest.Method]func(context.Context, storage.Store) error{
		storagetest.InsertOrGet: func(ctx context.Context, s storage.Store) error { _, err := s.InsertOrGet(ctx, nil); return err },
		storagetest.Get:         func(ctx context.Context, s storage.Store) error { _, err := s.Get(ctx, nil); return err },
		storagetest.Transition:  func(ctx context.Context, s storage.Store) error { _, err := s.Transition(ctx, nil); return err },
		storagetest.Replace:     func(ctx context.Context, s storage.Store) error { _, err := s.Replace(ctx, nil); return err },
		storagetest.SweepStep: func(ctx context.Context, s storage.Store) error {
			_, err := s.Sweep(ctx, storage.Sweep{Limit: 1})
			return err
		},
		storagetest.ListPage: func(ctx context.Context, s storage.Store) error {
			_, err := s.List(ctx, storage.List{Limit: 1})
			return err
		},
		storagetest.Scan: func(ctx context.Context, s storage.Store) error { return s.Scan(ctx, none) },
	} {
		for want, fault := range map[error]storagetest.Fault{
			storage.ErrUnavailable: {Before: storage.ErrUnavailable}, storage.ErrUnknown: {After: storage.ErrUnknown},
		} {
			inner := storagetest.NewCounting(newModel())
			f := storagetest.NewFaulty(inner, storagetest.FaultAt(method, 0, fault))
			if err := call(t.Context(), f); !errors.Is(err, want) {
				t.Errorf("%s: error %v, want %v", method, err, want)
			}
			if made := inner.Calls(method) == 1; made != (fault.After != nil) {
				t.Errorf("%s with %v: made %t", method, want, made)
			}
			if err := call(t.Context(), f); err != nil {
				t.Errorf("%s, second call: %v", method, err)
			}
		}
	}
}

func TestCounting(t *testing.T) {
	t.Parallel()
	c := storagetest.NewCounting(newModel())
	for range 2 {
		if _, err := c.InsertOrGet(t.Context(), []claim.Request{request("a"), request("b"), request("c")}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Get(t.Context(), []claim.Key{request("a").Key}); err != nil {
		t.Fatal(err)
	}
	if err := c.Scan(t.Context(), func(claim.Key) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if c.Calls(storagetest.InsertOrGet) != 2 || c.Items(storagetest.InsertOrGet) != 6 || c.Items(storagetest.Scan) != 3 || c.Trips() != 3 {
		t.Errorf("%d calls, %d items, %d scanned, %d trips", c.Calls(storagetest.InsertOrGet),
			c.Items(storagetest.InsertOrGet), c.Items(storagetest.Scan), c.Trips())
	}
	if c.Reset(); c.Trips() != 0 || c.Items(storagetest.Scan) != 0 {
		t.Error("Reset forgot nothing")
	}
}

func TestClock(t *testing.T) {
	t.Parallel()
	c := storagetest.NewClock(storagetest.Start.Add(time.Nanosecond))
	if !c.Now().Equal(storagetest.Start) {
		t.Errorf("finer than a microsecond: %v", c.Now())
	}
	c.Advance(time.Hour)
	c.Advance(-time.Minute)
	if got := c.Now().Sub(storagetest.Start); got != 59*time.Minute {
		t.Errorf("advanced by %v", got)
	}
	c.Set(storagetest.Start.In(time.FixedZone("east", 3600)))
	if c.Now() != storagetest.Start {
		t.Errorf("set to %v", c.Now())
	}
}
