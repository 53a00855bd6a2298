package quota

import (
	"testing"
	"time"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/codec"
)

func granted(lease time.Duration) *claim.Answer {
	return &claim.Answer{Decision: claim.Granted, Lease: lease}
}

func transition(kind claim.TransitionKind, body string) *claim.Transition {
	return &claim.Transition{Kind: kind, Completion: &claim.Completion{Body: []byte(body)}}
}

// TestNotes: what answers add, one row per rule.
func TestNotes(t *testing.T) {
	t.Parallel()
	r := request("event")
	lease, bytes := r.Lease, codec.RecordBytes(&claim.Record{Key: r.Key}, 0)
	oneShot := r
	oneShot.Record = &claim.Completion{Body: []byte("12345")}
	completed := codec.RecordBytes(&claim.Record{Key: r.Key, Completion: oneShot.Record}, 5)
	recorded := &claim.Answer{Decision: claim.Granted, Recorded: true}
	ok := &claim.Reply{Status: claim.OK}
	for name, row := range map[string]struct {
		note func(q *Quotas)
		want Counts
	}{
		"a new grant":                  {func(q *Quotas) { q.NoteClaim(shop, &r, granted(lease)) }, Counts{Live: 1, Keys: 1, Bytes: bytes}},
		"the same grant again":         {func(q *Quotas) { q.NoteClaim(shop, &r, granted(lease-1)) }, Counts{}},
		"a takeover is no new key":     {func(q *Quotas) { a := *granted(lease); a.Takeover = claim.LeaseLapsed; q.NoteClaim(shop, &r, &a) }, Counts{Live: 1}},
		"one-shot claims hold nothing": {func(q *Quotas) { q.NoteClaim(shop, &oneShot, recorded) }, Counts{Keys: 1, Bytes: completed}},
		"a duplicate":                  {func(q *Quotas) { q.NoteClaim(shop, &r, &claim.Answer{Decision: claim.Duplicate, Lease: lease}) }, Counts{}},
		"a completion": {func(q *Quotas) {
			q.NoteClaim(shop, &r, granted(lease))
			q.NoteTransition(shop, transition(claim.Complete, "12345"), ok)
		}, Counts{Keys: 1, Bytes: completed}},
		"a release": {func(q *Quotas) {
			q.NoteClaim(shop, &r, granted(lease))
			q.NoteTransition(shop, transition(claim.Release, ""), ok)
		}, Counts{Keys: 1, Bytes: bytes}},
		"an extension ends nothing": {func(q *Quotas) {
			q.NoteClaim(shop, &r, granted(lease))
			q.NoteTransition(shop, transition(claim.Extend, ""), ok)
		}, Counts{Live: 1, Keys: 1, Bytes: bytes}},
		"who is not the owner changes nothing": {func(q *Quotas) {
			q.NoteClaim(shop, &r, granted(lease))
			q.NoteTransition(shop, transition(claim.Complete, "x"), &claim.Reply{Status: claim.Stale})
		}, Counts{Live: 1, Keys: 1, Bytes: bytes}},
		"by hand":            {func(q *Quotas) { q.Note(shop, Delta{Live: 2, InDoubt: 3, Keys: 4, Bytes: 5}) }, Counts{Live: 2, InDoubt: 3, Keys: 4, Bytes: 5}},
		"never below zero":   {func(q *Quotas) { q.Note(shop, Delta{Live: -1, InDoubt: -1, Keys: -1, Bytes: -1}) }, Counts{}},
		"of another tenant":  {func(q *Quotas) { q.NoteClaim(shop+1, &r, granted(lease)) }, Counts{}},
		"another's grant":    {func(q *Quotas) { q.Note(shop, Delta{Live: -1}); q.NoteClaim(shop, &r, granted(lease)) }, Counts{Live: 0, Keys: 1, Bytes: bytes}},
		"resolved by people": {func(q *Quotas) { q.Note(shop, Delta{InDoubt: 2}); q.Note(shop, Delta{InDoubt: -1}) }, Counts{InDoubt: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q, _ := setup(t)
			row.note(q)
			if got := q.Usage(shop, &Limits{}).Counts; got != row.want {
				t.Errorf("got %+v, want %+v", got, row.want)
			}
		})
	}
}

// TestLeasesLapse: what was granted here does not count longer than it can
// live, and ends that belong to it do not count against others.
func TestLeasesLapse(t *testing.T) {
	t.Parallel()
	q, clock := setup(t)
	r, ok := request("event"), &claim.Reply{Status: claim.OK}
	for range 10 {
		q.NoteClaim(shop, &r, granted(30*time.Second))
	}
	for range 4 {
		q.NoteTransition(shop, transition(claim.Release, ""), ok)
	}
	live := func(when string, want int64) {
		t.Helper()
		if got := q.Usage(shop, &Limits{}).Live; got != want {
			t.Errorf("%s: %d live, want %d", when, got, want)
		}
	}
	live("granted", 6)
	clock.now += 30*time.Second - 1
	live("a moment before the end", 6)
	clock.now++
	live("at the end", 0)
	long := r
	long.Lease = time.Hour
	q.NoteClaim(shop, &long, granted(time.Hour))
	clock.now += 59 * time.Minute
	live("a long lease", 1)
	q.NoteTransition(shop, transition(claim.Release, ""), ok)
	live("a long lease that has ended", 0)
	q.NoteClaim(shop, &long, granted(time.Hour))
	live("the next", 1)
	clock.now += time.Hour
	live("lapsed, out of all slots", 0)
	short := r
	short.Lease = time.Second
	q.NoteClaim(shop, &short, granted(time.Second))
	live("a short lease", 1)
	clock.now += time.Second
	live("it has lapsed", 0)
	q.NoteClaim(shop, &long, granted(time.Hour))
	live("it does not live again with a long one", 1)
}

// TestEndsBelongToTheLiving: an end is not taken as that of a lease which has
// lapsed, as most of those have ended elsewhere.
func TestEndsBelongToTheLiving(t *testing.T) {
	t.Parallel()
	q, clock := setup(t)
	r := request("event")
	q.NoteClaim(shop, &r, granted(r.Lease))
	clock.now += r.Lease
	q.NoteClaim(shop, &r, granted(r.Lease))
	q.NoteTransition(shop, transition(claim.Release, ""), &claim.Reply{Status: claim.OK})
	if got := q.Usage(shop, &Limits{}).Live; got != 0 {
		t.Errorf("%d live", got)
	}
}

// TestCensusReplacesWhatIsOlder: usage is the census and what came after it.
func TestCensusReplacesWhatIsOlder(t *testing.T) {
	t.Parallel()
	q, clock := setup(t)
	note := func(keys int64) { q.Note(shop, Delta{Keys: keys, Live: keys}) }
	usage := func(when string, keys, live int64) {
		t.Helper()
		if u := q.Usage(shop, &Limits{}); u.Keys != keys || u.Live != live {
			t.Errorf("%s: %d keys and %d leases, want %d and %d", when, u.Keys, u.Live, keys, live)
		}
	}
	note(100)
	clock.now += levelSlots * levelSlot // 100 are older than all slots
	note(10)
	usage("before", 110, 10)
	clock.now += levelSlot
	began := clock.now
	note(1)
	q.adopt(shop, &Report{Total: Counts{Keys: 50, Live: 5}}, began)
	usage("counted", 51, 6)
	clock.now += 10 * time.Second
	if u := q.Usage(shop, &Limits{}); u.Age != 10*time.Second || u.Report == nil {
		t.Errorf("age %v", u.Age)
	}
	q.adopt(shop, &Report{Total: Counts{Keys: 1}}, began-time.Second)
	usage("an older census changes nothing", 51, 6)
	// What is in the slot that it began in stays: it may be counted twice.
	q.adopt(shop, &Report{Total: Counts{Keys: 60}}, began+time.Second)
	usage("a census within a slot", 61, 1)
	clock.now = began + levelSlot
	q.adopt(shop, &Report{Total: Counts{Keys: 61}}, clock.now)
	usage("a census at the end of a slot", 61, 0)
	clock.now += 1000 * time.Hour
	q.adopt(shop, &Report{Total: Counts{Keys: 7}}, clock.now)
	usage("long after", 7, 0)
}

// TestStanding: at a limit, and one over it.
func TestStanding(t *testing.T) {
	t.Parallel()
	q, _ := setup(t)
	q.Note(shop, Delta{Live: 8, Keys: 8, Bytes: 8, InDoubt: 8})
	for name, row := range map[string]struct {
		limits Limits
		want   int
		tight  bool
	}{
		"no limits":            {Limits{}, 500, false},
		"leases, room":         {Limits{LiveLeases: 10}, 2, false},
		"leases, not for all":  {Limits{LiveLeases: 10}, 3, true},
		"keys, room":           {Limits{Keys: 10}, 2, false},
		"keys, not for all":    {Limits{Keys: 10}, 3, true},
		"keys, lowered":        {Limits{Keys: 2}, 1, true},
		"bytes, room":          {Limits{Bytes: 9}, 500, false},
		"bytes, full":          {Limits{Bytes: 8}, 1, true},
		"in doubt, room":       {Limits{InDoubt: 9}, 500, false},
		"in doubt, full":       {Limits{InDoubt: 8}, 1, true},
		"rates are not levels": {Limits{Requests: 1, Items: 1}, 500, false},
	} {
		s := q.Standing(shop, &row.limits, row.want)
		if s.Tight() != row.tight {
			t.Errorf("%s: tight is %v", name, s.Tight())
		}
	}
}
