package sqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/sqlstore"
	"github.com/warifu/warifu/storage/sqlstore/mitm"
	"github.com/warifu/warifu/storage/storagetest"
)

// doubted is a database with a store behind a proxy, where something happens to
// trips with one statement, and with another store beside it.
type doubted struct {
	direct, behind storage.Store
	clock          *storagetest.Clock
	left           atomic.Int64 // how often the fault still strikes
	struck         atomic.Int64
	// between is called once, after a try that failed and before the next.
	between atomic.Pointer[func()]
}

func newDoubted(t *testing.T, statement string, f mitm.Fault) *doubted {
	t.Helper()
	url, sql := cleanSchema(t), sqlstore.Words(statement, sqlstore.Postgres)
	d := &doubted{clock: storagetest.NewClock(storagetest.Start)}
	p, err := mitm.New(mitm.Config{Upstream: server.Addr(), Decide: func(trip mitm.Trip) mitm.Fault {
		if !slices.Contains(trip.SQL, sql) || d.left.Add(-1) < 0 {
			return mitm.Fault{}
		}
		d.struck.Add(1)
		return f
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close the proxy: %v", err)
		}
	})
	through, err := p.URL(url)
	if err != nil {
		t.Fatal(err)
	}
	d.direct = open(t, url, d.clock, time.Hour, nil)
	d.behind = open(t, through, d.clock, time.Hour, func(c *sqlstore.Config) {
		c.Rand = func() float64 {
			if do := d.between.Swap(nil); do != nil {
				(*do)()
			}
			return 0
		}
	})
	return d
}

// asideAndLive stores a first claim that is completed with a result aside, and
// another that is live.
func asideAndLive(t *testing.T, s storage.Store) (aside, live claim.Record) {
	t.Helper()
	must(t.Context(), t, s, []claim.Request{
		matrixRequest(matrixKeys[0], 1, shot(large())), matrixRequest(matrixKeys[1], 1),
	}, storage.Store.InsertOrGet)
	all := records(t, s)
	return all[0], all[1]
}

// TestUnreadBody: what a call has written is written, though a result that it
// is to return beside it cannot be read: that item alone has no answer, and
// none says that nothing was applied.
func TestUnreadBody(t *testing.T) {
	t.Parallel()
	move := func(kind claim.TransitionKind, r claim.Record) claim.Transition {
		return claim.Transition{Kind: kind, Key: r.Key, Attempt: r.AttemptID, Fence: r.Fence, Lease: time.Hour, Completion: small()}
	}
	for name, c := range map[string]struct {
		call func(ctx context.Context, s storage.Store, aside, live claim.Record) ([]storage.Found, error)
		want error       // of the item whose result is not read
		then claim.State // of the other one
		at   int         // the other's place among matrixKeys
	}{
		"insert": {func(ctx context.Context, s storage.Store, _, _ claim.Record) ([]storage.Found, error) {
			return s.InsertOrGet(ctx, []claim.Request{matrixRequest(matrixKeys[0], 2), matrixRequest(matrixKeys[2], 2)})
		}, storage.ErrUnknown, claim.InProgress, 2},
		"transition": {func(ctx context.Context, s storage.Store, aside, live claim.Record) ([]storage.Found, error) {
			return s.Transition(ctx, []claim.Transition{move(claim.Complete, aside), move(claim.Complete, live)})
		}, storage.ErrUnknown, claim.Completed, 1},
		"transitions of several kinds": {func(ctx context.Context, s storage.Store, aside, live claim.Record) ([]storage.Found, error) {
			return s.Transition(ctx, []claim.Transition{move(claim.Extend, aside), move(claim.Complete, live)})
		}, storage.ErrUnknown, claim.Completed, 1},
		"swaps of several kinds": {func(ctx context.Context, s storage.Store, aside, live claim.Record) ([]storage.Found, error) {
			req := matrixRequest(aside.Key, 2)
			return s.Replace(ctx, []claim.Swap{claim.NewSwap(claim.TakeOver, &aside, &req), claim.NewSwap(claim.ResolveRetry, &live, nil)})
		}, storage.ErrUnknown, claim.Released, 1},
		"get": {func(ctx context.Context, s storage.Store, aside, live claim.Record) ([]storage.Found, error) {
			return s.Get(ctx, []claim.Key{aside.Key, live.Key})
		}, storage.ErrUnavailable, claim.InProgress, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDoubted(t, "bodies", mitm.Fault{Kind: mitm.DropBefore})
			aside, live := asideAndLive(t, d.direct)
			d.left.Store(persistent)
			found, err := c.call(t.Context(), d.behind, aside, live)
			if err != nil || len(found) != 2 {
				t.Fatalf("%d items, and the call says %v", len(found), err)
			}
			if d.struck.Load() == 0 {
				t.Fatal("no result was read")
			}
			for _, sentinel := range []error{storage.ErrUnknown, storage.ErrUnavailable} {
				if got := found[0].Err; errors.Is(got, sentinel) != errors.Is(sentinel, c.want) {
					t.Errorf("the item whose result is not read says %v, want %v", got, c.want)
				}
			}
			stored := records(t, d.direct)[c.at]
			if found[1].Err != nil || found[1].Record.State != c.then || !storagetest.SameRecord(found[1].Record, stored) {
				t.Errorf("the other is answered %+v\nand stored is %+v", found[1], stored)
			}
		})
	}
}

// resent is a call whose reply is lost, and what others do before it is sent
// again.
type resent struct {
	statement string
	call      func(ctx context.Context, s storage.Store, seen claim.Record) ([]storage.Found, error)
	// others change the record so that it no longer shows what the call did.
	others func(ctx context.Context, s storage.Store) error
	then   claim.State // when nobody interferes
}

func resends() map[string]resent {
	move := func(kind claim.TransitionKind) func(context.Context, storage.Store, claim.Record) ([]storage.Found, error) {
		return func(ctx context.Context, s storage.Store, seen claim.Record) ([]storage.Found, error) {
			return s.Transition(ctx, owner(kind, seen, small()))
		}
	}
	return map[string]resent{
		"resolve retry": {"resolve_retry", func(ctx context.Context, s storage.Store, seen claim.Record) ([]storage.Found, error) {
			return s.Replace(ctx, []claim.Swap{claim.NewSwap(claim.ResolveRetry, &seen, nil)})
		}, swapAgain(claim.TakeOver), claim.Released},
		"release": {"release", move(claim.Release), swapAgain(claim.TakeOver), claim.Released},
		"release, and its owner completes": {"release", move(claim.Release), func(ctx context.Context, s storage.Store) error {
			found, err := s.Get(ctx, matrixKeys[:1])
			if err != nil {
				return err
			}
			_, err = s.Transition(ctx, owner(claim.Complete, found[0].Record, small()))
			return err
		}, claim.Released},
		"complete": {"complete", move(claim.Complete), func(ctx context.Context, s storage.Store) error {
			return errors.Join(swapAgain(claim.Forget)(ctx, s), swapAgain(claim.BeginAnew)(ctx, s))
		}, claim.Completed},
	}
}

// swapAgain reads the first key and swaps it, for a second attempt.
func swapAgain(kind claim.SwapKind) func(context.Context, storage.Store) error {
	return func(ctx context.Context, s storage.Store) error {
		found, err := s.Get(ctx, matrixKeys[:1])
		if err != nil {
			return err
		}
		req := matrixRequest(matrixKeys[0], 2)
		found, err = s.Replace(ctx, []claim.Swap{claim.NewSwap(kind, &found[0].Record, &req)})
		if err == nil && !found[0].Applied {
			err = fmt.Errorf("swap %d is not applied to %+v", kind, found[0].Record)
		}
		return err
	}
}

// TestResendIsNoProof: the reply of a call is lost, and the store sends it
// again by itself. If the record then belongs to somebody else, nobody can say
// what became of the call; if not, the record does.
func TestResendIsNoProof(t *testing.T) {
	t.Parallel()
	for name, r := range resends() {
		for _, f := range []mitm.Kind{mitm.DropAfter, mitm.DropBefore} {
			for _, interfere := range []bool{true, false} {
				if f == mitm.DropBefore && interfere {
					continue // others cannot grant what is live
				}
				t.Run(fmt.Sprintf("%s, %s, others %v", name, mitm.Fault{Kind: f}, interfere), func(t *testing.T) {
					t.Parallel()
					d := newDoubted(t, r.statement, mitm.Fault{Kind: f})
					d.resend(t, r, interfere)
				})
			}
		}
	}
}

func (d *doubted) resend(t *testing.T, r resent, interfere bool) {
	t.Helper()
	ctx := t.Context()
	claimed()(ctx, t, d.direct, d.clock)
	seen := records(t, d.direct)[0]
	if interfere {
		do := func() {
			if err := r.others(ctx, d.direct); err != nil {
				t.Errorf("others: %v", err)
			}
		}
		d.between.Store(&do)
	}
	d.left.Store(1)
	found, err := r.call(ctx, d.behind, seen)
	if err != nil || d.struck.Load() != 1 || d.between.Load() != nil {
		t.Fatalf("struck %d times, and the call says %v", d.struck.Load(), err)
	}
	if interfere {
		if !errors.Is(found[0].Err, storage.ErrUnknown) || found[0].Applied || found[0].Record.State != claim.Absent {
			t.Errorf("applied, and hidden before the resend: %+v, want %v", found[0], storage.ErrUnknown)
		}
		return
	}
	stored := records(t, d.direct)[0]
	if found[0].Err != nil || found[0].Record.State != r.then || !storagetest.SameRecord(found[0].Record, stored) {
		t.Errorf("%+v\nand stored is %+v", found[0], stored)
	}
	if stored.Version != seen.Version+1 {
		t.Errorf("applied %d times", stored.Version-seen.Version)
	}
}

// TestKindsFailApart: of a batch with two kinds one is refused at its commit,
// again and again, after its rows were read. Its items are unknown, the others
// are answered.
func TestKindsFailApart(t *testing.T) {
	t.Parallel()
	l := newLane(t, sqlstore.Postgres)
	c := &cell{lane: l, sql: sqlstore.Words("complete", sqlstore.Postgres), fault: mitm.Fault{Kind: mitm.RefuseAtSync, Code: "40001"}}
	ctx := t.Context()
	reqs := []claim.Request{matrixRequest(matrixKeys[0], 1), matrixRequest(matrixKeys[1], 1)}
	found, err := l.direct.InsertOrGet(ctx, reqs)
	if err != nil {
		t.Fatal(err)
	}
	var ts []claim.Transition
	for i := range found {
		ts = append(ts, claim.Transition{Kind: claim.Complete, Key: reqs[i].Key, Attempt: reqs[i].Attempt, Fence: found[i].Record.Fence, Completion: large()})
	}
	ts[1].Kind, ts[1].Lease = claim.Extend, matrixLease
	c.left.Store(persistent)
	l.current.Store(c)
	moved, err := l.patient.Transition(ctx, ts)
	if err != nil {
		t.Fatal(err)
	}
	if !errors.Is(moved[0].Err, storage.ErrUnknown) || moved[1].Err != nil || !moved[1].Applied {
		t.Errorf("completed: %+v\nextended: %+v", moved[0], moved[1])
	}
}
