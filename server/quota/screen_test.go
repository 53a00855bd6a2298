package quota

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/warifu/warifu/server/arbiter"
	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storagetest"
)

var _ Reader = (*arbiter.Arbiter)(nil)

// shelf is a store as a Reader.
type shelf struct {
	storage.Store
	reads int
}

func (s *shelf) Lookup(ctx context.Context, keys []claim.Key) ([]storage.Found, error) {
	s.reads++
	var found []storage.Found
	for _, k := range keys { // they may repeat, which a store does not take
		one, err := s.Get(ctx, []claim.Key{k})
		if err != nil {
			return nil, err
		}
		found = append(found, one...)
	}
	return found, nil
}

// stocked is a store in which events have the states of their names.
func stocked(t *testing.T) *shelf {
	t.Helper()
	clock := storagetest.NewClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	s := &shelf{Store: storagetest.NewModel(clock.Now, claim.SweepGrace)}
	insert := func(event string, edit func(*claim.Request)) claim.Record {
		r := request(event)
		edit(&r)
		found, err := s.InsertOrGet(t.Context(), []claim.Request{r})
		if err != nil {
			t.Fatal(err)
		}
		return found[0].Record
	}
	move := func(rec claim.Record, kind claim.TransitionKind) {
		tr := claim.Transition{Kind: kind, Key: rec.Key, Attempt: rec.AttemptID, Fence: rec.Fence, Completion: &claim.Completion{Outcome: claim.Succeeded}}
		if found, err := s.Transition(t.Context(), []claim.Transition{tr}); err != nil || !found[0].Applied {
			t.Fatalf("%v, %v", found, err)
		}
	}
	long := func(r *claim.Request) { r.Lease = time.Hour }
	short := func(r *claim.Request) {
		r.Lease, r.Policy.Window, r.Policy.Retention = time.Second, time.Second, time.Second
	}
	move(insert("expired", short), claim.Complete)
	insert("lapsed", func(*claim.Request) {})
	insert("lapsed-hold", func(r *claim.Request) { r.Policy.Hold = true })
	insert("lapsed-capped", func(r *claim.Request) { r.Policy.AttemptsMax = 5 })
	move(insert("completed", long), claim.Complete)
	move(insert("released", long), claim.Release)
	insert("live", long)
	clock.Advance(time.Minute)
	return s
}

// TestScreen: what each quota is held against, by what is stored. "self" is a
// claim by the attempt that made the record.
func TestScreen(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		event   string
		edit    func(*claim.Request)
		refused []What // by which quotas
	}{
		"absent":            {event: "absent", refused: []What{LiveLeases, Keys, Bytes}},
		"absent, hold":      {event: "absent", edit: func(r *claim.Request) { r.Policy.Hold = true }, refused: []What{LiveLeases, Keys, Bytes, InDoubt}},
		"absent, capped":    {event: "absent", edit: func(r *claim.Request) { r.Policy.AttemptsMax = 3 }, refused: []What{LiveLeases, Keys, Bytes, InDoubt}},
		"absent, one-shot":  {event: "absent", edit: func(r *claim.Request) { r.Record = &claim.Completion{}; r.Policy.Hold = true }, refused: []What{Keys, Bytes}},
		"absent, too old":   {event: "absent", edit: func(r *claim.Request) { r.InsertBefore = 1 }},
		"expired":           {event: "expired", refused: []What{LiveLeases, Keys, Bytes}},
		"duplicate":         {event: "completed"},
		"mismatch":          {event: "completed", edit: func(r *claim.Request) { r.Digests = []claim.Digest{{Scheme: "s", Value: []byte{1}}} }},
		"duplicate, own":    {event: "completed", edit: self},
		"in progress":       {event: "live"},
		"in progress, own":  {event: "live", edit: self},
		"released":          {event: "released", refused: []What{LiveLeases}},
		"released, own":     {event: "released", edit: self},
		"lapsed":            {event: "lapsed", refused: []What{LiveLeases}},
		"lapsed, own":       {event: "lapsed", edit: self}, // a resend adds nothing
		"lapsed, in doubt":  {event: "lapsed-hold"},
		"lapsed, capped":    {event: "lapsed-capped", refused: []What{LiveLeases, InDoubt}},
		"lapsed, by policy": {event: "lapsed", edit: func(r *claim.Request) { r.Policy.Hold = true }, refused: []What{LiveLeases}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := stocked(t)
			q, _ := setup(t)
			q.Note(shop, Delta{Live: 10, Keys: 10, Bytes: 10, InDoubt: 10})
			for what, limits := range map[What]Limits{
				LiveLeases: {LiveLeases: 5}, Keys: {Keys: 10}, Bytes: {Bytes: 9}, InDoubt: {InDoubt: 10},
			} {
				r := request(row.event)
				r.Attempt = claim.AttemptID{2}
				if row.edit != nil {
					row.edit(&r)
				}
				s := q.Standing(shop, &limits, 1)
				if !s.Tight() {
					t.Fatalf("%v: not tight", what)
				}
				err := q.Screen(t.Context(), store, s, []claim.Request{r})[0]
				want := false
				for _, w := range row.refused {
					want = want || w == what
				}
				var e Exceeded
				if errors.As(err, &e); e.Over() != want || want && (e.What != what || e.Used != 10 || e.RetryAfter <= 0) {
					t.Errorf("%v: %v, want a refusal: %v", what, err, want)
				}
			}
		})
	}
}

func self(r *claim.Request) { r.Attempt = claim.AttemptID{1} }

// TestScreenFillsTheRoom: what there is room for is admitted, in order, and a
// key that comes again in a batch needs no room of its own.
func TestScreenFillsTheRoom(t *testing.T) {
	t.Parallel()
	store := stocked(t)
	q, _ := setup(t)
	q.Note(shop, Delta{Keys: 98})
	s := q.Standing(shop, &Limits{Keys: 100}, 6)
	var reqs []claim.Request
	for _, event := range []string{"a", "completed", "b", "a", "c", "b"} {
		r := request(event)
		r.Attempt = claim.AttemptID{2}
		reqs = append(reqs, r)
	}
	errs := q.Screen(t.Context(), store, s, reqs)
	for i, refused := range []bool{false, false, false, false, true, false} {
		if (errs[i] != nil) != refused {
			t.Errorf("item %d (%s): %v", i, reqs[i].Key.EventID, errs[i])
		}
	}
	if store.reads != 1 {
		t.Errorf("%d reads", store.reads)
	}
}

// TestScreenSaysWhatItCannotRead: a claim over the quota is not let through
// because the store did not answer.
func TestScreenSaysWhatItCannotRead(t *testing.T) {
	t.Parallel()
	q, _ := setup(t)
	q.Note(shop, Delta{Keys: 1})
	s := q.Standing(shop, &Limits{Keys: 1}, 2)
	reqs := []claim.Request{request("a"), request("b")}
	for i, err := range q.Screen(t.Context(), mute{storage.ErrUnavailable, nil}, s, reqs) {
		if !errors.Is(err, storage.ErrUnavailable) {
			t.Errorf("item %d: %v", i, err)
		}
	}
	for i, err := range q.Screen(t.Context(), mute{nil, storage.ErrClockSuspect}, s, reqs) {
		if !errors.Is(err, storage.ErrClockSuspect) {
			t.Errorf("item %d alone: %v", i, err)
		}
	}
}

type mute struct{ all, each error }

func (m mute) Lookup(_ context.Context, keys []claim.Key) ([]storage.Found, error) {
	found := make([]storage.Found, len(keys))
	for i := range found {
		found[i].Err = m.each
	}
	return found, m.all
}
