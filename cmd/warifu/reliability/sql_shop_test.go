package reliability_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	warifu "github.com/warifu/warifu/sdk/go"
)

const (
	shopWorkers = 6
	// shopCopies is how often each event is delivered; each copy is delivered
	// again until it is accepted.
	shopCopies = 3
	// shopTries bounds how often: a delivery takes a lease at the most.
	shopTries = 300
	nackMax   = 200 * time.Millisecond
	longBody  = 5000 // is stored beside its record
)

// What a handler does.
const (
	obliging  = iota
	giveUp    // nothing happened, and it says so
	fallOver  // nobody knows
	oversleep // and completes as soon as its lease is lost
)

// habits are what handlers do, as often as they stand here.
var habits = []int{obliging, obliging, obliging, obliging, obliging, obliging, giveUp, fallOver, oversleep}

// certain are the first errands, and what the first of their handlers does: what
// has to be seen is not left to chance.
var certain = []struct {
	consumer string
	habit    int
}{{regrant, giveUp}, {hold, fallOver}}

var errFell = errors.New("the handler fell over")

// shop is a queue of deliveries and the workers that handle them, each with any
// of the servers, under leases that end.
type shop struct {
	t       *testing.T
	clients []*warifu.Client
	workers sync.WaitGroup
	closing chan struct{}
	close   func()
	mu      struct {
		sync.Mutex
		made  int
		queue []errand
		files map[errand]*file
	}
}

// errand is an event of a consumer, as often as it is delivered.
type errand struct{ consumer, event string }

// file is what is known of an errand.
type file struct {
	first    int // what the first handler does, unless it is obliging
	runs     []run
	accepted []acceptance
	inDoubt  int
	tries    int
}

// run is one run of a handler.
type run struct {
	asked, began, ended time.Time // the claim was sent; the handler
	leaseUntil          time.Time // nobody else is granted before
	fence               int64
	attempt             uint32
}

// acceptance is an answer that ended a delivery.
type acceptance struct {
	at   time.Time
	body string
}

func newShop(t *testing.T, rng *rand.Rand, replicas []*replica) *shop {
	t.Helper()
	s := &shop{t: t, closing: make(chan struct{})}
	s.close = sync.OnceFunc(func() { close(s.closing) })
	s.mu.files = map[errand]*file{}
	for _, r := range replicas {
		s.clients = append(s.clients, r.sdk)
	}
	for range shopWorkers {
		rng := fork(rng)
		s.workers.Go(func() {
			for e, ok := s.next(rng); ok && !t.Failed(); e, ok = s.next(rng) {
				s.deliver(e, rng)
			}
		})
	}
	return s
}

// wait closes the shop for new events and returns when all deliveries are done.
func (s *shop) wait() {
	s.close()
	s.workers.Wait()
}

// next takes a delivery; false when the shop is closed and none is left.
func (s *shop) next(rng *rand.Rand) (errand, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.closing:
	default:
		if len(s.mu.queue) < shopWorkers*shopCopies {
			e, f := errand{[]string{regrant, hold}[rng.IntN(2)], fmt.Sprint("errand ", s.mu.made)}, &file{first: obliging}
			if s.mu.made < len(certain) {
				e.consumer, f.first = certain[s.mu.made].consumer, certain[s.mu.made].habit
			}
			s.mu.made++
			s.mu.files[e] = f
			s.mu.queue = append(s.mu.queue, slices.Repeat([]errand{e}, shopCopies)...)
		}
	}
	if len(s.mu.queue) == 0 {
		return errand{}, false
	}
	i := rng.IntN(len(s.mu.queue))
	e := s.mu.queue[i]
	s.mu.queue = slices.Delete(s.mu.queue, i, i+1)
	return e, true
}

// deliver hands a delivery to one of the servers, and puts it back where it was
// not accepted.
func (s *shop) deliver(e errand, rng *rand.Rand) {
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	asked := time.Now()
	var mine *run
	long := rng.IntN(8) == 0
	result, err := s.clients[rng.IntN(len(s.clients))].Do(ctx, warifu.Event{Consumer: e.consumer, ID: e.event},
		func(ctx context.Context, g warifu.Grant) (warifu.Completion, error) {
			mine = &run{asked: asked, began: time.Now(), leaseUntil: g.LeaseUntil, fence: g.Fence, attempt: g.Attempt}
			defer func() { mine.ended = time.Now() }()
			return handle(ctx, e, g, s.habit(e, rng), long)
		}, warifu.WithLease(shortLease), warifu.WithWait(time.Duration(rng.IntN(2))*shortLease/2))
	s.note(e, mine, &result, err)
	if result.Accepted || errors.Is(err, warifu.ErrInDoubt) {
		return
	}
	pause := time.NewTimer(time.Duration(rng.Int64N(int64(nackMax))))
	defer pause.Stop()
	<-pause.C
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.queue = append(s.mu.queue, e)
}

// habit is what the handler that runs now does.
func (s *shop) habit(e errand, rng *rand.Rand) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, habit := s.mu.files[e], habits[rng.IntN(len(habits))]
	if f.first != obliging {
		habit, f.first = f.first, obliging
	}
	if e.consumer == hold && habit == giveUp {
		habit = fallOver
	}
	return habit
}

// handle is the effect of an errand, whose result names the attempt.
func handle(ctx context.Context, e errand, g warifu.Grant, habit int, long bool) (warifu.Completion, error) {
	body := fmt.Sprintf("%s, attempt %d, fence %d", e.event, g.Attempt, g.Fence)
	if long {
		body += strings.Repeat(".", longBody)
	}
	switch habit {
	case giveUp:
		return warifu.Completion{}, warifu.Retryable(errFell)
	case fallOver:
		return warifu.Completion{}, errFell
	case oversleep:
		timer := time.NewTimer(2 * shortLease) // it is extended as long as a server answers
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	return warifu.Completion{Body: []byte(body)}, nil
}

// note keeps what came of a delivery.
func (s *shop) note(e errand, mine *run, result *warifu.Result, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.mu.files[e]
	f.tries++
	if mine != nil {
		f.runs = append(f.runs, *mine)
	}
	if result.Accepted {
		f.accepted = append(f.accepted, acceptance{time.Now(), string(result.Body)})
	}
	if errors.Is(err, warifu.ErrInDoubt) {
		f.inDoubt++
	}
	for _, wrong := range []error{
		warifu.ErrMismatch, warifu.ErrTooOld, warifu.ErrUnprotected, warifu.ErrInvalid, warifu.ErrInternal, warifu.ErrReply,
		warifu.ErrResultConflict, warifu.ErrAttemptEnded, warifu.ErrUnauthenticated,
	} {
		if errors.Is(err, wrong) {
			s.t.Errorf("%v: an answer that nothing here deserves: %v", e, err)
		}
	}
	if f.tries > shopTries {
		s.t.Errorf("%v is not accepted after %d deliveries; the last one: %v", e, f.tries, err)
	}
}

// faults are the promises that were not kept to those who handled an errand.
func (f *file) faults(e errand) error {
	var faults []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	slices.SortFunc(f.runs, func(a, b run) int { return a.began.Compare(b.began) })
	done := slices.MinFunc(append(f.accepted, acceptance{at: farAway}), func(a, b acceptance) int { return a.at.Compare(b.at) })
	for i, r := range f.runs {
		for _, earlier := range f.runs[:i] {
			fault(r.fence == earlier.fence, "fence %d was given twice", r.fence)
			if r.fence < earlier.fence {
				// Both answers were under way: only their claims have an order.
				fault(r.asked.After(earlier.began), "fence %d after fence %d", r.fence, earlier.fence)
				continue
			}
			free := earliest(earlier.leaseUntil, earlier.ended)
			fault(r.began.Before(free), "two live grants: fence %d began %v before fence %d was over", r.fence, free.Sub(r.began), earlier.fence)
		}
		fault(r.asked.After(done.at), "fence %d was granted after the completion", r.fence)
	}
	fault(e.consumer == hold && len(f.runs) > 1, "%d runs under HOLD", len(f.runs))
	fault(e.consumer == regrant && f.inDoubt > 0, "in doubt under REGRANT")
	fault(len(f.accepted)+f.inDoubt != shopCopies, "%d deliveries were accepted, %d were in doubt, and there are %d", len(f.accepted), f.inDoubt, shopCopies)
	for _, a := range f.accepted {
		fault(a.body != f.accepted[0].body, "two results: %.100q and %.100q", a.body, f.accepted[0].body)
	}
	return errors.Join(faults...)
}

// farAway is later than anything here.
var farAway = time.Now().Add(1000 * time.Hour)

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
