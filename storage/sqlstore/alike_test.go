package sqlstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/sqlstore"
	"github.com/warifu/warifu/storage/sqlstore/mitm"
	"github.com/warifu/warifu/storage/storagetest"
)

// TestAlikeIsWhatIsStored: what claims of one consumer are told they have stored
// is what is stored, to the last field, whatever their policy and times are; and
// what they are told when they meet it.
func TestAlikeIsWhatIsStored(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	clock := storagetest.NewClock(storagetest.Start)
	s := open(t, cleanSchema(t), clock, time.Hour, nil)
	for round := range 30 {
		clock.Advance(time.Duration(r.IntN(1000)) * time.Microsecond)
		now := claim.FromTime(clock.Now())
		reqs := alikeRequests(r, round, now)
		told := mustFind(t, s.InsertOrGet, reqs)
		keys := make([]claim.Key, len(reqs))
		for i := range reqs {
			keys[i] = reqs[i].Key
		}
		stored, again := mustFind(t, s.Get, keys), mustFind(t, s.InsertOrGet, reqs)
		for i := range reqs {
			want := claim.Record{}
			if now < reqs[i].InsertBefore {
				want = claim.Fresh(micro(&reqs[i]), now, 0)
			}
			for what, got := range map[string]storage.Found{"told": told[i], "stored": stored[i], "told again": again[i]} {
				if !storagetest.SameRecord(got.Record, want) || got.Now != now {
					t.Fatalf("seed %d, round %d, item %d is %s at %v:\n%+v\nwant %+v", seed, round, i, what, got.Now, got.Record, want)
				}
			}
		}
	}
}

// alikeRequests are of one consumer. Durations are not in microseconds, half of
// the rounds have times, and some events are too old.
func alikeRequests(r *rand.Rand, round int, now claim.Time) []claim.Request {
	span := func() time.Duration { return time.Second + time.Duration(r.Int64N(int64(100*time.Hour))) }
	common := claim.Request{
		Key: claim.Key{Tenant: claim.TenantID(1 + r.IntN(2)), Consumer: fmt.Sprintf("c%d", round)}, Lease: span(),
		Policy: claim.Policy{
			Hold: r.IntN(2) == 0, AttemptsMax: r.Uint32N(9), Window: span(), Retention: span(), HoldMax: span(),
			ResultBytesMax: r.Int32N(1 << 20),
		},
	}
	reqs := make([]claim.Request, 1+r.IntN(60))
	for i := range reqs {
		q := common
		q.Key.EventID, q.InsertBefore = fmt.Sprint(i), claim.Never
		q.Attempt = claim.AttemptID{byte(round), byte(i), 1}
		for n := range r.IntN(3) {
			q.Digests = append(q.Digests, claim.Digest{Scheme: fmt.Sprint("s", n), Value: make([]byte, 1+r.IntN(64))})
		}
		if round%2 == 0 && r.IntN(2) == 0 {
			q.EventTime, q.InsertBefore = now-claim.Time(r.IntN(1000)), now+claim.Time(r.IntN(3)-1)
		}
		reqs[i] = q
	}
	return reqs
}

// micro is a request in the precision of the store.
func micro(r *claim.Request) *claim.Request {
	out := *r
	for _, d := range []*time.Duration{&out.Policy.Window, &out.Policy.Retention, &out.Policy.HoldMax} {
		*d = d.Truncate(time.Microsecond)
	}
	return &out
}

func mustFind[I any](t *testing.T, call func(context.Context, []I) ([]storage.Found, error), items []I) []storage.Found {
	t.Helper()
	found, err := call(t.Context(), items)
	if err != nil {
		t.Fatal(err)
	}
	for i := range found {
		if found[i].Err != nil {
			t.Fatalf("item %d: %v", i, found[i].Err)
		}
	}
	return found
}

// TestAlikeChooses: requests that share all but their events are sent as such,
// and others are not.
func TestAlikeChooses(t *testing.T) {
	t.Parallel()
	l := newLane(t, sqlstore.Postgres)
	lean, whole := sqlstore.Words("insert_alike", sqlstore.Postgres), sqlstore.Words("insert", sqlstore.Postgres)
	for name, c := range map[string]struct {
		change func(*claim.Request)
		alike  bool
	}{
		"the same":           {func(*claim.Request) {}, true},
		"other digests":      {func(r *claim.Request) { r.Digests = nil }, true},
		"an event time":      {func(r *claim.Request) { r.EventTime = 1 }, true},
		"a time limit":       {func(r *claim.Request) { r.InsertBefore = claim.Never - 1 }, true},
		"another tenant":     {func(r *claim.Request) { r.Key.Tenant++ }, false},
		"another consumer":   {func(r *claim.Request) { r.Key.Consumer += "x" }, false},
		"another lease":      {func(r *claim.Request) { r.Lease++ }, false},
		"another policy":     {func(r *claim.Request) { r.Policy.AttemptsMax++ }, false},
		"an outcome at once": {shot(small()), false},
	} {
		l.proxy.Reset()
		if err := emptied(t.Context(), l.url); err != nil {
			t.Fatal(err)
		}
		mustFind(t, l.patient.InsertOrGet, []claim.Request{matrixRequest(matrixKeys[0], 1), matrixRequest(matrixKeys[1], 2, c.change)})
		count := func(sql string) int {
			return l.proxy.Count(func(trip mitm.Trip) bool { return slices.Contains(trip.SQL, sql) })
		}
		if (count(lean) > 0) != c.alike || (count(whole) > 0) == c.alike {
			t.Errorf("%s: %d trips with the one statement, %d with the other", name, count(lean), count(whole))
		}
	}
}

// TestAlikeMeetsTheUncommitted: a key that somebody else is taking is waited for.
// When that is committed the claim finds it, though its own statement began
// before; when it is undone the claim has the key.
func TestAlikeMeetsTheUncommitted(t *testing.T) {
	t.Parallel()
	for _, isolation := range []sqlstore.Isolation{sqlstore.ReadCommitted, sqlstore.Serializable} {
		for _, end := range []string{"COMMIT", "ROLLBACK"} {
			t.Run(fmt.Sprintf("%s, %s", isolation, end), func(t *testing.T) {
				t.Parallel()
				url := cleanSchema(t)
				s := open(t, url, nil, time.Hour, func(c *sqlstore.Config) { c.Isolation = isolation })
				mustFind(t, s.InsertOrGet, []claim.Request{matrixRequest(matrixKeys[0], 1)})
				holder := newSession(t, url)
				holder.run("BEGIN", fmt.Sprintf(`INSERT INTO claims
					SELECT (jsonb_populate_record(c, '{"event_id": %q, "shard": %d}')).* FROM claims AS c`,
					matrixKeys[1].EventID, sqlstore.ShardOf(matrixKeys[1])))
				done := make(chan []storage.Found, 1)
				fresh := matrixKeys[0]
				fresh.EventID = "fresh"
				go func() {
					found, err := s.InsertOrGet(context.WithoutCancel(t.Context()), []claim.Request{matrixRequest(matrixKeys[1], 2), matrixRequest(fresh, 2)})
					if err != nil {
						t.Error(err)
					}
					done <- found
				}()
				newSession(t, url).waited(holder)
				holder.run(end)
				found, want := <-done, attemptID(1)
				if end == "ROLLBACK" {
					want = attemptID(2)
				}
				if len(found) != 2 || found[0].Record.AttemptID != want || found[1].Record.AttemptID != attemptID(2) {
					t.Errorf("found %+v, want attempts %v and %v", found, want, attemptID(2))
				}
			})
		}
	}
}

// TestInsertsInTheOrderOfKeys: both statements lock their keys in one order, or
// two batches could wait for each other. A new table has its rows in that in which
// they were inserted.
func TestInsertsInTheOrderOfKeys(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*claim.Request){"alike": func(*claim.Request) {}, "not alike": longer} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := ownSchema(t)
			s := open(t, url, nil, time.Hour, nil)
			seed := rand.Uint64()
			r := rand.New(rand.NewPCG(seed, 0))
			var reqs []claim.Request
			for i := range 200 {
				k := claim.Key{Tenant: 1, Consumer: "c", EventID: fmt.Sprint(i)}
				reqs = append(reqs, matrixRequest(k, byte(r.IntN(256))))
			}
			change(&reqs[0])
			mustFind(t, s.InsertOrGet, reqs)
			n := newSession(t, url).number(`SELECT count(*) FROM
				(SELECT (shard, event_id) < lag((shard, event_id)) OVER (ORDER BY ctid) AS back FROM claims) AS c WHERE back`)
			if n != 0 {
				t.Errorf("seed %d: %d of %d rows are behind a larger key", seed, n, len(reqs))
			}
		})
	}
}

// TestNowOfWhatIsInserted: a claim that waited, and is granted in the end, is not
// older than what its store has answered meanwhile.
func TestNowOfWhatIsInserted(t *testing.T) {
	t.Parallel()
	url := cleanSchema(t)
	s := open(t, url, nil, time.Hour, nil)
	first := matrixKeys[0]
	mustFind(t, s.InsertOrGet, []claim.Request{matrixRequest(first, 1)})
	w := waitsFor(t, url, first, func(ctx context.Context) ([]storage.Found, error) {
		return s.InsertOrGet(ctx, []claim.Request{matrixRequest(first, 2)})
	})
	seen := mustFind(t, s.Get, matrixKeys[1:2])
	out := w.free()
	if out[0].Record.AttemptID != attemptID(2) || out[0].Now < seen[0].Now || seen[0].Now <= out[0].Record.GrantedAt {
		t.Errorf("%+v, and %v was seen", out[0], seen[0].Now)
	}
}
