package sealed

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storagetest"
)

// edited is a store in which somebody has changed what is read.
type edited struct {
	storage.Store
	edit func(*claim.Record)
}

func (e edited) Get(ctx context.Context, keys []claim.Key) ([]storage.Found, error) {
	found, err := e.Store.Get(ctx, keys)
	for i := range found {
		e.change(&found[i].Record)
	}
	return found, err
}

func (e edited) InsertOrGet(ctx context.Context, reqs []claim.Request) ([]storage.Found, error) {
	found, err := e.Store.InsertOrGet(ctx, reqs)
	for i := range found {
		e.change(&found[i].Record)
	}
	return found, err
}

func (e edited) Transition(ctx context.Context, ts []claim.Transition) ([]storage.Found, error) {
	found, err := e.Store.Transition(ctx, ts)
	for i := range found {
		e.change(&found[i].Record)
	}
	return found, err
}

// List changes the same, though the bodies are not there.
func (e edited) List(ctx context.Context, l storage.List) (storage.Page, error) {
	page, err := e.Store.List(ctx, l)
	for i := range page.Records {
		full, err := e.Get(ctx, []claim.Key{page.Records[i].Key})
		if err != nil {
			return page, err
		}
		page.Records[i] = full[0].Record
	}
	return page, err
}

func (e edited) change(rec *claim.Record) {
	if rec.Completion != nil {
		c := *rec.Completion
		c.Body, c.Metadata = bytes.Clone(c.Body), slices.Clone(c.Metadata)
		rec.Completion = &c
		e.edit(rec)
	}
}

// TestNothingMoves: whatever of a sealed result is moved or changed in the store,
// it is not given out, and the record it is found in stays completed.
func TestNothingMoves(t *testing.T) {
	t.Parallel()
	b := setup(t)
	here := key(1, "own", "here")
	c := result(strings.Repeat("secret ", 200))
	b.completed(b.Store, here, c)
	stored := b.get(b.inner, here).Record
	from := func(k claim.Key) claim.Completion {
		b.completed(b.Store, k, c)
		return *b.get(b.inner, k).Record.Completion
	}
	later := *result("later")
	edits := map[string]func(*claim.Record){
		"of another event":         whole(from(key(1, "own", "there"))),
		"of a second undeclared":   whole(from(key(1, "another", "here"))),
		"of an undeclared":         whole(from(key(1, "other", "here"))),
		"only the body":            func(r *claim.Record) { r.Completion.Body = from(key(1, "own", "body")).Body },
		"only the digest":          func(r *claim.Record) { r.Completion.ContentType = from(key(1, "own", "digest")).ContentType },
		"to another attempt":       func(r *claim.Record) { r.AttemptID = attempt(2) },
		"the digest as the body":   func(r *claim.Record) { r.Completion.Body, _ = marked(r.Completion.ContentType) },
		"plain beside a digest":    func(r *claim.Record) { r.Completion.Body = later.Body },
		"the outcome":              func(r *claim.Record) { r.Completion.Outcome = claim.Rejected },
		"the content type":         func(r *claim.Record) { r.Completion.ContentType += "x" },
		"the metadata":             func(r *claim.Record) { r.Completion.Metadata[0].Value = "w" },
		"more metadata":            func(r *claim.Record) { r.Completion.Metadata = append(r.Completion.Metadata, claim.Pair{Name: "z"}) },
		"a body cut off":           func(r *claim.Record) { r.Completion.Body = r.Completion.Body[:len(r.Completion.Body)-1] },
		"a body cut short":         func(r *claim.Record) { r.Completion.Body = r.Completion.Body[:Overhead-1] },
		"a content type cut short": func(r *claim.Record) { r.Completion.ContentType = r.Completion.ContentType[:markerLen-1] },
		"bound to the fence":       func(r *claim.Record) { r.Completion.Body[1] |= flagByFence },
		"said to be plain":         func(r *claim.Record) { r.Completion.Body[1] &^= flagZstd },
	}
	for name, edit := range edits {
		s, err := New(Config{Store: edited{b.inner, edit}, Keys: b.ring})
		if err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) {
			b.wantUnread(s, here)
			if n := s.SealStats(); n.Damaged != 3 || n.Opened+n.Unavailable != 0 {
				t.Errorf("%+v", n)
			}
		})
	}
	// The keys of another tenant are not even looked at: to this one there are none.
	elsewhere, err := New(Config{Store: edited{b.inner, whole(from(key(2, "own", "here")))}, Keys: b.ring})
	if err != nil {
		t.Fatal(err)
	}
	b.wantGone(elsewhere, here, c)
	if got := b.get(b.inner, here).Record; !storagetest.SameRecord(got, stored) {
		t.Fatal("the test has changed the store")
	}
	b.want(b.Store, here, c)
}

func whole(c claim.Completion) func(*claim.Record) {
	return func(r *claim.Record) {
		r.Completion.Body, r.Completion.ContentType, r.Completion.Sum = c.Body, c.ContentType, c.Sum
	}
}

// TestEveryByteCounts flips each byte of a stored body and of a stored content
// type in turn.
func TestEveryByteCounts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	k, c := key(1, "other", "e"), result("a result")
	b.completed(b.Store, k, c)
	stored := b.get(b.inner, k).Record.Completion
	read := func(edit func(*claim.Record)) storage.Found {
		s, err := New(Config{Store: edited{b.inner, edit}, Keys: b.ring})
		if err != nil {
			t.Fatal(err)
		}
		return b.get(s, k)
	}
	for i := range stored.Body {
		f := read(func(r *claim.Record) { r.Completion.Body[i] ^= 0x10 })
		got := f.Record.Completion
		if f.Err != nil || got.Omitted != claim.Unreadable || got.Body != nil || got.Sum != c.Sum {
			t.Fatalf("byte %d of the body: %v, %+v", i, f.Err, got)
		}
	}
	for i := len(sealedPrefix); i < len(stored.ContentType); i++ {
		f := read(func(r *claim.Record) {
			ct := []byte(r.Completion.ContentType)
			ct[i] ^= 0x02
			r.Completion.ContentType = string(ct)
		})
		// Where the key's ID stands, another key is asked for, which is not there.
		gone := f.Err == nil && f.Record.Completion.Omitted == claim.Shredded && i < len(sealedPrefix)+8
		got := f.Record.Completion
		if !gone && (f.Err != nil || got.Omitted != claim.Unreadable || got.Body != nil || got.Sum == c.Sum) {
			t.Fatalf("byte %d of the content type: %v, %+v", i, f.Err, f.Record.Completion)
		}
	}
}

// TestWaysToComplete: every call that can write a result seals it, and binds it
// to what it knows.
func TestWaysToComplete(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(b *bench, k claim.Key, c *claim.Completion) claim.Record{
		"one shot": func(b *bench, k claim.Key, c *claim.Completion) claim.Record {
			r := request(k, 1)
			r.Record = c
			return b.one(b.InsertOrGet(b.t.Context(), []claim.Request{r}))
		},
		"transition": func(b *bench, k claim.Key, c *claim.Completion) claim.Record { return b.completed(b.Store, k, c) },
		"take over": func(b *bench, k claim.Key, c *claim.Completion) claim.Record {
			rec := b.one(b.InsertOrGet(b.t.Context(), []claim.Request{request(k, 1)}))
			rec = b.one(b.Transition(b.t.Context(), []claim.Transition{{Kind: claim.Release, Key: k, Attempt: rec.AttemptID, Fence: rec.Fence}}))
			r := request(k, 2)
			r.Record = c
			return b.one(b.Replace(b.t.Context(), []claim.Swap{claim.NewSwap(claim.TakeOver, &rec, &r)}))
		},
		"on its own grant": func(b *bench, k claim.Key, c *claim.Completion) claim.Record {
			r := request(k, 1)
			rec := b.one(b.InsertOrGet(b.t.Context(), []claim.Request{r}))
			r.Record = c
			return b.one(b.Replace(b.t.Context(), []claim.Swap{claim.NewSwap(claim.RecordOwn, &rec, &r)}))
		},
		"resolved": func(b *bench, k claim.Key, c *claim.Completion) claim.Record {
			r := request(k, 1)
			r.Policy.Hold = true
			rec := b.one(b.InsertOrGet(b.t.Context(), []claim.Request{r}))
			b.clock.Advance(r.Lease)
			swap := claim.NewSwap(claim.ResolveComplete, &rec, nil)
			swap.Result = c
			return b.one(b.Replace(b.t.Context(), []claim.Swap{swap}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			k, c := key(1, "own", "e"), result("a result")
			rec := do(b, k, c)
			if rec.State != claim.Completed || !rec.Completion.Same(c) || string(rec.Completion.Body) != "a result" {
				t.Fatalf("answered %+v", rec.Completion)
			}
			b.want(b.Store, k, c)
			raw := b.get(b.inner, k).Record.Completion
			if e, err := parseEnvelope(raw.Body); err != nil || e.flags&flagByFence != 0 != (name == "resolved") || raw.Sum == c.Sum {
				t.Fatalf("stored as %v, %+v", err, e)
			}
			if c.ContentType != "text/plain" || string(c.Body) != "a result" {
				t.Fatalf("the caller's completion was changed: %+v", c)
			}
		})
	}
}

// TestLookalikes: a client that stores what looks like an envelope is given just
// that, whatever it puts beside it.
func TestLookalikes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	victim := key(1, "own", "victim")
	b.completed(b.Store, victim, result("the victim's"))
	raw := b.get(b.inner, victim).Record.Completion
	plain, err := New(Config{Store: b.inner, Keys: b.ring, WritePlain: true})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, contentType := range []string{"", "text/plain", raw.ContentType, sealedPrefix, escapedPrefix, escapedPrefix + raw.ContentType, reservedByte, reservedByte + "q"} {
		for _, body := range [][]byte{raw.Body, nil, []byte("x")} {
			for _, s := range []*Store{b.Store, plain} {
				c := claim.Completion{Outcome: claim.Succeeded, ContentType: contentType, Body: body}.Summed()
				n++
				k := key(1, "own", fmt.Sprint(n))
				b.completed(s, k, &c)
				b.want(b.Store, k, &c)
				b.want(plain, k, &c)
			}
		}
	}
	// From before sealing was on: never with the reserved byte, which the server refuses.
	old := claim.Completion{Outcome: claim.Succeeded, ContentType: "text/plain", Body: raw.Body}.Summed()
	rec := b.one(b.inner.InsertOrGet(t.Context(), []claim.Request{request(key(1, "own", "old"), 1)}))
	b.one(b.inner.Transition(t.Context(), []claim.Transition{completion(&rec, &old)}))
	b.want(b.Store, rec.Key, &old)
}

// TestResendsAreRecognised, though no two envelopes are the same, and also where
// the store has dropped the body.
func TestResendsAreRecognised(t *testing.T) {
	t.Parallel()
	b := setup(t)
	k, c := key(1, "own", "e"), result("a result")
	rec := b.completed(b.Store, k, c)
	dropped, err := New(Config{Keys: b.ring, Store: edited{b.inner, func(r *claim.Record) { r.Completion = r.Completion.Without(claim.StoreFull) }}})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Store{b.Store, dropped} {
		shot := request(k, 1)
		shot.Record = c
		found := b.one(s.InsertOrGet(t.Context(), []claim.Request{shot}))
		if a := claim.Decide(&found, &shot, claim.FromTime(b.clock.Now())).Answer; a.Decision != claim.Granted || !a.Recorded {
			t.Errorf("the same result: %+v", a)
		}
		shot.Record = result("another")
		found = b.one(s.InsertOrGet(t.Context(), []claim.Request{shot}))
		if a := claim.Decide(&found, &shot, claim.FromTime(b.clock.Now())).Answer; a.Decision != claim.Duplicate || !a.OwnAttempt {
			t.Errorf("another result: %+v", a)
		}
	}
	again := completion(&rec, c)
	found := b.one(b.Transition(t.Context(), []claim.Transition{again}))
	if reply, more := again.Explain(&found, claim.FromTime(b.clock.Now())); more || reply.Status != claim.OK {
		t.Errorf("completed again: %+v", reply)
	}
	if f := b.get(dropped, k); f.Record.Completion.Omitted != claim.StoreFull || f.Record.Completion.Sum != c.Sum || f.Record.Completion.Body != nil {
		t.Errorf("dropped: %+v", f.Record.Completion)
	}
}

func TestListing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c := result("a result")
	b.completed(b.Store, key(1, "own", "a"), c)
	list := func(s *Store) *claim.Completion {
		page, err := s.List(t.Context(), storage.List{Tenant: 1, Limit: 10})
		if err != nil || len(page.Records) != 1 {
			t.Fatalf("%v, %+v", err, page)
		}
		return page.Records[0].Completion
	}
	if got := list(b.Store); !got.Same(c) || got.Omitted != claim.NotOmitted {
		t.Errorf("%+v", got)
	}
	if got := list(b.over(noKeys{})); got.ContentType != "text/plain" || got.Sum != [32]byte{} || got.Omitted != claim.Unreadable {
		t.Errorf("without keys: %+v", got)
	}
}

// TestPlainBytesStayInside: nothing of a result, nor its digest, is in the files
// of a store. The same bytes written plain are, so the search finds what is there.
func TestPlainBytesStayInside(t *testing.T) {
	t.Parallel()
	for _, plain := range []bool{false, true} {
		t.Run(fmt.Sprint("plain=", plain), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			fs := vfs.NewMem()
			driver := openPebble(t, fs, b.clock.Now, claim.SweepGrace)
			ring, err := NewRing(RingConfig{Registry: driver.Registry(), KEKs: []KEK{b.kms}, Clock: b.clock.Now})
			if err != nil {
				t.Fatal(err)
			}
			b.reg = driver.Registry()
			b.apply(tenantOne())
			s, err := New(Config{Store: driver, Keys: ring, WritePlain: plain})
			if err != nil {
				t.Fatal(err)
			}
			canaries := writeCanaries(b, s)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			files := filesOf(t, fs, "store")
			for name, canary := range canaries {
				if bytes.Contains(files, canary) != plain {
					t.Errorf("%s is in the files: %v", name, !plain)
				}
			}
			if !bytes.Contains(files, []byte("canary-event")) {
				t.Error("not even the event IDs are in the files: they are not the right ones")
			}
		})
	}
}

// writeCanaries completes events with small, large and random results, and
// returns what must not be found.
func writeCanaries(b *bench, s *Store) map[string][]byte {
	b.t.Helper()
	random := rand.New(rand.NewPCG(7, 7))
	canaries := map[string][]byte{}
	for i, size := range []int{20, 600, 5000, 100_000} {
		body := []byte(fmt.Sprintf("canary-body-%d-", i))
		for len(body) < size {
			body = append(body, byte(random.Uint32()))
		}
		c := claim.Completion{Outcome: claim.Succeeded, Body: body}.Summed()
		b.completed(s, key(1, "own", fmt.Sprint("canary-event-", i)), &c)
		canaries[fmt.Sprint("body ", i)] = body[:15]
		canaries[fmt.Sprint("digest ", i)] = c.Sum[:]
	}
	return canaries
}

// filesOf returns all bytes under a directory.
func filesOf(t *testing.T, fs vfs.FS, dir string) (all []byte) {
	t.Helper()
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		path := fs.PathJoin(dir, name)
		info, err := fs.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.IsDir() {
			all = append(all, filesOf(t, fs, path)...)
			continue
		}
		f, err := fs.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		data := make([]byte, info.Size())
		if _, err := f.ReadAt(data, 0); err != nil && info.Size() > 0 {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		all = append(all, data...)
	}
	return all
}

func TestConfig(t *testing.T) {
	t.Parallel()
	if _, err := New(Config{}); err == nil || !strings.Contains(err.Error(), "Store") || !strings.Contains(err.Error(), "Keys") {
		t.Errorf("%v", err)
	}
	if _, err := New(Config{Store: storagetest.NewModel(time.Now, 0), WritePlain: true, Logger: slog.Default()}); err == nil || !strings.Contains(err.Error(), "Clock") {
		t.Errorf("%v", err)
	}
	k := newKMS("k")
	_, err := NewRing(RingConfig{CallTimeout: -1, RetryAfter: -1, KEKs: []KEK{k, k}})
	for _, field := range []string{"Registry", "Clock", "CallTimeout", "RetryAfter", "two KEKs"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s is not reported: %v", field, err)
		}
	}
	if _, err := NewRing(RingConfig{}); err == nil || !strings.Contains(err.Error(), "at least one") {
		t.Errorf("%v", err)
	}
}
