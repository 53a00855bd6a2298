package sealed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// outages are the ways in which results cannot be read, each a store over b's.
func outages(b *bench) map[string]*Store {
	wrong := newKMS("other")
	impostor, err := NewLocalKEK("kms-1", bytes.Repeat([]byte("wrong kek"), kekLen)[:kekLen])
	if err != nil {
		b.t.Fatal(err)
	}
	down := newKMS("kms-1")
	down.set(errKMS, false)
	reg := &failing{Registry: b.reg, load: storage.ErrUnavailable}
	blind, err := NewRing(RingConfig{Registry: reg, KEKs: []KEK{b.kms}, Clock: b.clock.Now})
	if err != nil {
		b.t.Fatal(err)
	}
	damaged, err := New(Config{Store: edited{b.inner, func(r *claim.Record) {
		ct := []byte(r.Completion.ContentType)
		ct[markerLen-2] ^= 0x01
		r.Completion.ContentType = string(ct)
	}}, Keys: b.ring})
	if err != nil {
		b.t.Fatal(err)
	}
	none, err := New(Config{Store: b.inner, WritePlain: true})
	if err != nil {
		b.t.Fatal(err)
	}
	return map[string]*Store{
		"the service fails": b.over(b.newRing(down)), "another key of that name": b.over(b.newRing(impostor)),
		"a key that is not configured": b.over(b.newRing(wrong)), "no keys": none,
		"no registry": b.over(blind), "damaged": damaged,
	}
}

// TestWhatIsDoneStaysDone: whatever keeps a result from being read, the event is
// completed, all that needs no key is known of it, and life goes on.
func TestWhatIsDoneStaysDone(t *testing.T) {
	t.Parallel()
	for name := range outages(setup(t)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			k, c := key(1, "own", "e"), result("a result")
			rec := b.completed(b.Store, k, c)
			s := outages(b)[name]
			if got := b.wantUnread(s, k); got.Outcome != c.Outcome || got.ContentType != c.ContentType || len(got.Metadata) != 1 || got.Metadata[0] != c.Metadata[0] {
				t.Errorf("%+v", got)
			}
			if n := s.SealStats(); n.Unavailable+n.Damaged != 3 || (n.Damaged == 3) != (name == "damaged") || n.Shredded+n.Opened+n.Unkept != 0 {
				t.Errorf("%+v", n)
			}
			b.wantBelieved(s, &rec, c)
			lifeGoesOn(b, s, k)
		})
	}
}

// lifeGoesOn: a completed event expires and begins anew, and is forgotten,
// without what it has stored being read.
func lifeGoesOn(b *bench, s *Store, k claim.Key) {
	b.t.Helper()
	b.clock.Advance(3 * request(k, 1).Policy.Retention)
	next := request(k, 50)
	rec := b.one(s.InsertOrGet(b.t.Context(), []claim.Request{next}))
	step := claim.Decide(&rec, &next, claim.FromTime(b.clock.Now()))
	if step.Swap.Kind != claim.BeginAnew {
		b.t.Fatalf("expired: %+v", step)
	}
	f, err := s.Replace(b.t.Context(), []claim.Swap{step.Swap})
	if fresh := b.one(f, err); !f[0].Applied || fresh.AttemptID != next.Attempt {
		b.t.Fatalf("begun anew: %+v", f)
	}
	other := key(k.Tenant, k.Consumer, k.EventID+" forgotten")
	b.completed(b.Store, other, result("a result"))
	found := b.get(s, other)
	verb := claim.Verb{Kind: claim.Forget, Key: other, Fence: found.Record.Fence, State: claim.Completed}
	ruling, swap := verb.Rule(&found.Record, found.Now)
	if ruling != claim.SwapAllowed {
		b.t.Fatalf("forget: %v", ruling)
	}
	b.one(s.Replace(b.t.Context(), []claim.Swap{swap}))
	if f := b.get(s, other); f.Record.State != claim.Forgotten || f.Record.Completion != nil {
		b.t.Errorf("forgotten: %+v", f.Record)
	}
}

// TestOnlyTheBytesAreDamaged: then the digest is known, and another result of
// the owner is still told from the same.
func TestOnlyTheBytesAreDamaged(t *testing.T) {
	t.Parallel()
	b := setup(t)
	k, c := key(1, "own", "e"), result(strings.Repeat("a result ", 200))
	rec := b.completed(b.Store, k, c)
	s, err := New(Config{Store: edited{b.inner, func(r *claim.Record) { r.Completion.Body[Overhead] ^= 1 }}, Keys: b.ring})
	if err != nil {
		t.Fatal(err)
	}
	if got := b.wantUnread(s, k); got.Sum != c.Sum {
		t.Errorf("%+v", got)
	}
	b.wantBelieved(s, &rec, c)
	other := completion(&rec, result("another"))
	found := b.one(s.Transition(t.Context(), []claim.Transition{other}))
	if reply, _ := other.Explain(&found, claim.FromTime(b.clock.Now())); reply.Status != claim.ResultConflict {
		t.Errorf("another result: %+v", reply)
	}
}

// TestOtherReasonsStay: what a driver left out anyway is not said to be
// unreadable: BATCH_BUDGET has the asker ask again.
func TestOtherReasonsStay(t *testing.T) {
	t.Parallel()
	b := setup(t)
	k := key(1, "own", "e")
	b.completed(b.Store, k, result("a result"))
	for _, why := range []claim.Omission{claim.BatchBudget, claim.StoreFull} {
		s, err := New(Config{Keys: noKeys{}, Store: edited{b.inner, func(r *claim.Record) { r.Completion = r.Completion.Without(why) }}})
		if err != nil {
			t.Fatal(err)
		}
		if f := b.get(s, k); f.Err != nil || f.Record.Completion.Omitted != why {
			t.Errorf("%v, %+v", f.Err, f.Record.Completion)
		}
	}
}

// unsealable are the ways in which an attempt reports what it has done.
var unsealable = map[string]func(b *bench, k claim.Key, c *claim.Completion) ([]storage.Found, error){
	"one shot": func(b *bench, k claim.Key, c *claim.Completion) ([]storage.Found, error) {
		r := request(k, 1)
		r.Record = c
		return b.InsertOrGet(b.t.Context(), []claim.Request{r})
	},
	"transition": func(b *bench, k claim.Key, c *claim.Completion) ([]storage.Found, error) {
		rec := b.one(b.InsertOrGet(b.t.Context(), []claim.Request{request(k, 1)}))
		return b.Transition(b.t.Context(), []claim.Transition{completion(&rec, c)})
	},
	"take over": func(b *bench, k claim.Key, c *claim.Completion) ([]storage.Found, error) {
		rec := b.one(b.InsertOrGet(b.t.Context(), []claim.Request{request(k, 1)}))
		rec = b.one(b.Transition(b.t.Context(), []claim.Transition{{Kind: claim.Release, Key: k, Attempt: rec.AttemptID, Fence: rec.Fence}}))
		r := request(k, 2)
		r.Record = c
		return b.Replace(b.t.Context(), []claim.Swap{claim.NewSwap(claim.TakeOver, &rec, &r)})
	},
	"on its own grant": func(b *bench, k claim.Key, c *claim.Completion) ([]storage.Found, error) {
		r := request(k, 1)
		rec := b.one(b.InsertOrGet(b.t.Context(), []claim.Request{r}))
		r.Record = c
		return b.Replace(b.t.Context(), []claim.Swap{claim.NewSwap(claim.RecordOwn, &rec, &r)})
	},
	"a new life": func(b *bench, k claim.Key, c *claim.Completion) ([]storage.Found, error) {
		rec := b.one(b.InsertOrGet(b.t.Context(), []claim.Request{request(k, 1)}))
		b.clock.Advance(3 * rec.Policy.Retention)
		r := request(k, 2)
		r.Record = c
		return b.Replace(b.t.Context(), []claim.Swap{claim.NewSwap(claim.BeginAnew, &rec, &r)})
	},
}

// TestWithoutAKeyItIsDone: a completion that cannot be sealed is stored without
// its bytes and their digest, and is done for good.
func TestWithoutAKeyItIsDone(t *testing.T) {
	t.Parallel()
	for name, do := range unsealable {
		for kind, contentType := range map[string]string{"": "text/plain", ", odd type": sealedPrefix + "x"} {
			t.Run(name+kind, func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				c := result("a result")
				c.ContentType = contentType
				k := key(1, "own", "e")
				b.kms.set(errKMS, false)
				rec := b.one(do(b, k, c))
				if got := rec.Completion; rec.State != claim.Completed || got.Omitted != claim.Unreadable || !got.Same(c) || got.Body != nil {
					t.Fatalf("answered %+v", rec)
				}
				raw := b.get(b.inner, k).Record.Completion
				if raw.Omitted != claim.Unreadable || raw.Body != nil || raw.Sum != [32]byte{} || raw.Outcome != c.Outcome || len(raw.Metadata) != 1 {
					t.Errorf("stored %+v", raw)
				}
				if string(c.Body) != "a result" || c.Omitted != claim.NotOmitted || c.ContentType != contentType {
					t.Errorf("the caller's completion was changed: %+v", c)
				}
				b.clock.Advance(time.Microsecond)
				for range 2 { // without the key, and with it: what is lost does not come back
					if got := b.wantUnread(b.Store, k); got.ContentType != contentType {
						t.Errorf("%+v", got)
					}
					b.wantBelieved(b.Store, &rec, c)
					b.kms.set(nil, false)
					b.clock.Advance(b.ring.cfg.RetryAfter)
				}
				if n := b.SealStats(); n.Unkept != 1 || n.Damaged+n.Shredded+n.Unavailable != 0 {
					t.Errorf("%+v", n)
				}
				b.completed(b.Store, key(1, "own", "later"), c)
			})
		}
	}
}

// TestOperatorsComeBack: without a key they resolve nothing, and only their item
// of a batch is held back.
func TestOperatorsComeBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c := result("a result")
	resolve := func(event string) claim.Swap {
		r := request(key(1, "own", event), 1)
		r.Policy.Hold = true
		rec := b.one(b.InsertOrGet(t.Context(), []claim.Request{r}))
		b.clock.Advance(r.Lease)
		swap := claim.NewSwap(claim.ResolveComplete, &rec, nil)
		swap.Result = c
		return swap
	}
	doubt := resolve("doubt")
	shot := request(key(1, "own", "shot"), 2)
	rec := b.one(b.InsertOrGet(t.Context(), []claim.Request{shot}))
	shot.Record = c
	empty := resolve("empty")
	none := claim.Completion{Outcome: claim.Rejected}.Summed()
	empty.Result = &none
	b.kms.set(errKMS, false)
	found, err := b.Replace(t.Context(), []claim.Swap{doubt, claim.NewSwap(claim.RecordOwn, &rec, &shot), empty})
	if err != nil || !errors.Is(found[0].Err, storage.ErrUnavailable) || found[0].Record.State != claim.Absent {
		t.Fatalf("%v, %+v", err, found)
	}
	if found[1].Err != nil || found[1].Record.Completion.Omitted != claim.Unreadable || found[2].Err != nil || !found[2].Applied {
		t.Errorf("the others: %+v", found[1:])
	}
	if raw := b.get(b.inner, doubt.Key).Record; raw.State != claim.InProgress || raw.Completion != nil {
		t.Errorf("applied all the same: %+v", raw)
	}
	if n := b.SealStats(); n.Unavailable != 1 || n.Unkept != 1 {
		t.Errorf("%+v", n)
	}
	if _, err := b.Replace(t.Context(), []claim.Swap{doubt, doubt}); !errors.Is(err, storage.ErrRepeatedKey) {
		t.Errorf("a repeated key that is held back: %v", err)
	}
	b.kms.set(nil, false)
	b.clock.Advance(b.ring.cfg.RetryAfter)
	b.one(b.Replace(t.Context(), []claim.Swap{doubt}))
	b.want(b.Store, doubt.Key, c)
}

// TestUnreadableIsKept: a driver that is opened again has it as it was.
func TestUnreadableIsKept(t *testing.T) {
	t.Parallel()
	b := setup(t)
	fs := vfs.NewMem()
	driver := openPebble(t, fs, b.clock.Now, claim.SweepGrace)
	down, c, k := b.over(noKeys{}), result(strings.Repeat("a result", 1000)), key(1, "own", "e")
	down.Store = driver
	rec := b.one(down.InsertOrGet(t.Context(), []claim.Request{request(k, 1)}))
	b.one(down.Transition(t.Context(), []claim.Transition{completion(&rec, c)}))
	if err := driver.Close(); err != nil {
		t.Fatal(err)
	}
	again := b.over(b.ring)
	again.Store = openPebble(t, fs, b.clock.Now, claim.SweepGrace)
	b.wantUnread(again, k)
	b.wantBelieved(again, &rec, c)
}

// TestNoticesAreFew: each cause is logged once in a while, with how often it was
// not, and nothing that is secret.
func TestNoticesAreFew(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c := result("canary result")
	for i := range 10 {
		b.completed(b.Store, key(1, "own", fmt.Sprint("done-", i)), c)
	}
	var log bytes.Buffer
	s, err := New(Config{Store: b.inner, Keys: noKeys{}, Logger: slog.New(slog.NewTextHandler(&log, nil)), Clock: b.clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	broken := b.over(b.ring)
	broken.Store = edited{b.inner, func(r *claim.Record) { r.Completion.Body[Overhead] ^= 1 }}
	broken.notices.logger, broken.notices.clock = s.notices.logger, s.notices.clock
	for round := range 2 {
		for i := range 10 {
			b.get(s, key(1, "own", fmt.Sprint("done-", i)))
			b.get(broken, key(1, "own", fmt.Sprint("done-", i)))
			shot := request(key(1, "own", fmt.Sprint("new-", round, i)), 1)
			shot.Record = c
			b.one(s.InsertOrGet(t.Context(), []claim.Request{shot}))
		}
		b.clock.Advance(NoticeEvery - time.Microsecond)
		b.get(s, key(1, "own", "done-0"))
		b.clock.Advance(time.Microsecond)
	}
	text := log.String()
	for message, level := range map[string]string{textUnavailable: "WARN", textDamaged: "ERROR", textUnkept: "ERROR"} {
		if n := strings.Count(text, message); n != 2 || !strings.Contains(text, "level="+level+` msg="`+message) {
			t.Errorf("%q is logged %d times:\n%s", message, n, text)
		}
	}
	if !strings.Contains(text, "others_before=9") || !strings.Contains(text, "others_before=10") || strings.Contains(text, "canary") || strings.Contains(text, "done-") {
		t.Errorf("logged:\n%s", text)
	}
	// Where nothing else is said, the ring's logger is told.
	b.kms.set(errKMS, false)
	b.wantUnread(b.over(b.newRing(b.kms)), key(1, "own", "done-0"))
	if !strings.Contains(b.log.String(), textUnavailable) {
		t.Errorf("the ring's log has:\n%s", b.log)
	}
}

// flaky keys cannot be had now and then.
type flaky struct {
	KeyRing
	n *int
}

func (f flaky) trouble() error {
	if *f.n++; *f.n%3 == 0 {
		return errKMS
	}
	return nil
}

func (f flaky) DataKey(ctx context.Context, tenant claim.TenantID, consumer string) (DataKey, error) {
	if err := f.trouble(); err != nil {
		return DataKey{}, err
	}
	return f.KeyRing.DataKey(ctx, tenant, consumer)
}

func (f flaky) Open(ctx context.Context, tenant claim.TenantID, consumer string, id uint32) (DataKey, error) {
	if err := f.trouble(); err != nil {
		return DataKey{}, err
	}
	return f.KeyRing.Open(ctx, tenant, consumer, id)
}

// TestKeysComeAndGo: with keys and without, each event is done once, and no
// answer is an error or a grant.
func TestKeysComeAndGo(t *testing.T) {
	t.Parallel()
	b := setup(t)
	n := 0
	s := b.over(flaky{anyKeys{}, &n})
	c := result("a result")
	bodies := 0
	for i := range 100 {
		k := key(1, "own", fmt.Sprint(i))
		rec := b.one(s.InsertOrGet(t.Context(), []claim.Request{request(k, 1)}))
		f, err := s.Transition(t.Context(), []claim.Transition{completion(&rec, c)})
		if b.one(f, err); !f[0].Applied {
			t.Fatalf("%d: %+v", i, f)
		}
		b.wantBelieved(s, &rec, c)
		again := request(k, 2)
		found := b.one(s.InsertOrGet(t.Context(), []claim.Request{again}))
		if a := claim.Decide(&found, &again, claim.FromTime(b.clock.Now())).Answer; a.Decision != claim.Duplicate {
			t.Fatalf("%d: %+v", i, a)
		}
		bodies += len(found.Completion.Body)
	}
	if stats := s.SealStats(); bodies == 0 || bodies == 100*len(c.Body) || stats.Unkept == 0 || stats.Unavailable == 0 {
		t.Errorf("%d bytes, %+v: not both ways were tried", bodies, stats)
	}
}
