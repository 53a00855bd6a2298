package sealed

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

func why() registry.AuditEntry { return registry.AuditEntry{Actor: "key-1", Reason: "because"} }

// rows are a tenant's keys, and those of its consumer "own", as they are stored.
func (b *bench) rows(tenant claim.TenantID) (shared, own []registry.DataKey) {
	b.t.Helper()
	c, err := b.reg.Load(b.t.Context(), 0)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, row := range c.Tenants {
		if row.ID == tenant {
			shared = row.DataKeys
		}
	}
	for _, row := range c.Consumers {
		if row.Tenant == tenant && row.Name == "own" {
			own = row.DataKeys
		}
	}
	return shared, own
}

func (b *bench) audited() []registry.AuditEntry {
	b.t.Helper()
	page, err := b.reg.Audit(b.t.Context(), registry.AuditQuery{Scope: registry.Platform(), Limit: registry.PageMax})
	if err != nil {
		b.t.Fatal(err)
	}
	return page.Entries
}

// TestKeysOnFirstNeed: a declared consumer has its own key, the others share
// their tenant's, and no wrapped key is in the audit log.
func TestKeysOnFirstNeed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i, consumer := range []string{"own", "x", "y", "own"} {
		b.completed(b.Store, key(1, consumer, fmt.Sprint(i)), result(consumer))
	}
	shared, own := b.rows(1)
	if len(shared) != 1 || len(own) != 1 || shared[0].KEK != "kms-1" || own[0].Created != claim.FromTime(b.clock.Now()) {
		t.Fatalf("tenant %+v, consumer %+v", shared, own)
	}
	if shared, own := b.rows(2); len(shared)+len(own) != 0 {
		t.Errorf("keys that nobody needs: %+v %+v", shared, own)
	}
	entries := b.audited()
	if len(entries) != 3 || entries[0].Action != "data_key.create" || entries[0].Target != "tenant 1" || entries[1].Target != "consumer own of tenant 1" {
		t.Fatalf("%+v", entries)
	}
	for _, e := range entries {
		for _, k := range append(shared, own...) {
			for _, form := range [][]byte{k.Wrapped, []byte(base64.StdEncoding.EncodeToString(k.Wrapped)), []byte(hex.EncodeToString(k.Wrapped))} {
				if bytes.Contains(e.Before, form) || bytes.Contains(e.After, form) {
					t.Errorf("a wrapped key is in the audit log: %s", e.After)
				}
			}
		}
	}
	if c, err := b.reg.Load(t.Context(), 0); err != nil || c.Consumers[0].Note != "keep" {
		t.Errorf("what else the row said is gone: %v, %+v", err, c.Consumers)
	}
}

// TestReplicasAgree: of many servers that need the first key at once, all seal
// with the same, and read what the others have sealed without a sync.
func TestReplicasAgree(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const servers = 8
	var wg sync.WaitGroup
	var ids [servers][2]uint32
	rings := make([]*Ring, servers)
	for i := range servers {
		rings[i] = b.newRing(b.kms)
	}
	for i := range servers {
		for j := range ids[i] {
			wg.Go(func() {
				k, err := rings[i].DataKey(t.Context(), 1, "own")
				if err != nil {
					t.Error(err)
				}
				ids[i][j] = k.ID
			})
		}
	}
	wg.Wait()
	_, own := b.rows(1)
	for _, id := range ids {
		if len(own) != 1 || id != [2]uint32{own[0].ID, own[0].ID} {
			t.Fatalf("%v, stored %+v", ids, own)
		}
	}
	c := result("a result")
	b.completed(b.over(rings[0]), key(1, "x", "e"), c)
	late := b.newRing(b.kms)
	b.ring.Update(registry.Changes{Full: true}) // knows nothing
	b.want(b.Store, key(1, "x", "e"), c)
	b.want(b.over(late), key(1, "x", "e"), c)
}

// TestRotationUnderLoad: while keys are rotated and wrapped anew on one server,
// no completion and no read fails on another.
func TestRotationUnderLoad(t *testing.T) {
	t.Parallel()
	b := setup(t)
	second := newKMS("kms-2")
	admin := b.newRing(b.kms, second)
	b.ring = b.newRing(b.kms, second)
	b.Store = b.over(b.ring)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for w := range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				k, c := key(1, "own", fmt.Sprint(w, "-", i)), result(fmt.Sprint("result ", w, i))
				r := request(k, 1)
				r.Record = c
				found, err := b.InsertOrGet(t.Context(), []claim.Request{r})
				if err != nil || found[0].Err != nil {
					t.Error(err, found)
					return
				}
				got, err := b.Get(t.Context(), []claim.Key{k})
				if err != nil || got[0].Err != nil || !bytes.Equal(got[0].Record.Completion.Body, c.Body) {
					t.Error(err, got)
					return
				}
			}
		})
	}
	var ids []uint32
	for i := range 6 {
		id, err := admin.Rotate(t.Context(), 1, "own", why())
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
		if _, err := admin.Rewrap(t.Context(), []string{"kms-2", "kms-1"}[i%2], why()); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			b.sync(b.ring)
		}
	}
	close(stop)
	wg.Wait()
	b.sync(b.ring)
	if k, err := b.ring.DataKey(t.Context(), 1, "own"); err != nil || k.ID != ids[5] {
		t.Errorf("%v, %v, want %d", err, k, ids[5])
	}
}

func TestRotateIsMadeOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := why()
	w.Change = registry.ID{9}
	first, err := b.ring.Rotate(t.Context(), 1, "", w)
	if err != nil {
		t.Fatal(err)
	}
	again, err := b.newRing(b.kms).Rotate(t.Context(), 1, "", w)
	if shared, _ := b.rows(1); err != nil || again != first || len(shared) != 1 {
		t.Errorf("%v, %d and %d, stored %+v", err, first, again, shared)
	}
	if _, err := b.ring.Rotate(t.Context(), 1, "undeclared", why()); !errors.Is(err, ErrNoRow) {
		t.Errorf("%v", err)
	}
	for range KeysMax - 1 {
		if _, err := b.ring.Rotate(t.Context(), 1, "", why()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.ring.Rotate(t.Context(), 1, "", why()); !errors.Is(err, ErrKeysFull) {
		t.Errorf("one over the limit: %v", err)
	}
}

func TestRewrap(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c := result("a result")
	for _, consumer := range []string{"own", "x"} {
		b.completed(b.Store, key(1, consumer, "e"), c)
	}
	if _, err := b.ring.Rotate(t.Context(), 1, "own", why()); err != nil {
		t.Fatal(err)
	}
	second := newKMS("kms-2")
	admin := b.newRing(second, b.kms)
	b.kms.set(errKMS, false)
	if done, err := admin.Rewrap(t.Context(), "kms-2", why()); err == nil || done.Keys != 0 {
		t.Fatalf("without the old key: %v, %+v", err, done)
	}
	b.kms.set(nil, false)
	b.clock.Advance(time.Minute)
	if done, err := admin.Rewrap(t.Context(), "kms-2", why()); err != nil || done != (Rewrapped{Rows: 2, Keys: 3}) {
		t.Fatalf("%v, %+v", err, done)
	}
	if done, err := admin.Rewrap(t.Context(), "kms-2", why()); err != nil || done != (Rewrapped{}) {
		t.Fatalf("again: %v, %+v", err, done)
	}
	if _, err := admin.Rewrap(t.Context(), "kms-3", why()); !errors.Is(err, registry.ErrInvalid) {
		t.Fatalf("with an unknown key: %v", err)
	}
	alone := b.over(b.newRing(second)) // the old one is taken away
	b.want(alone, key(1, "own", "e"), c)
	b.want(alone, key(1, "x", "e"), c)
	b.wantUnread(b.over(b.newRing(b.kms)), key(1, "own", "e"))
}

// TestWrappedKeysDoNotMove: in another row a wrapped key is worth nothing.
func TestWrappedKeysDoNotMove(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.completed(b.Store, key(1, "own", "e"), result("a result"))
	_, own := b.rows(1)
	here := owner{1, "own"}
	if _, err := b.kms.Unwrap(t.Context(), own[0].Wrapped, here.place(own[0].ID)); err != nil {
		t.Fatal(err)
	}
	for _, elsewhere := range [][]byte{
		owner{2, "own"}.place(own[0].ID), owner{1, "x"}.place(own[0].ID), owner{tenant: 1}.place(own[0].ID), here.place(own[0].ID + 1),
	} {
		if _, err := b.kms.Unwrap(t.Context(), own[0].Wrapped, elsewhere); err == nil {
			t.Errorf("unwraps at %q", elsewhere)
		}
	}
	if _, err := b.ring.secret(t.Context(), owner{1, "x"}, own[0]); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("in another row: %v", err)
	}
}

// TestKMSFails: while keys cannot be had, what was done is known to be, and no
// key is asked for again at once; afterwards all goes on by itself.
func TestKMSFails(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c := result("a result")
	b.completed(b.Store, key(1, "own", "done"), c)
	cold := b.over(b.newRing(b.kms)) // has nothing unwrapped
	b.kms.set(errKMS, false)
	b.wantUnread(cold, key(1, "own", "done"))
	before := b.kms.calls.Load()
	b.wantUnread(cold, key(1, "own", "done"))
	if got := b.kms.calls.Load(); got != before {
		t.Errorf("asked %d more times at once", got-before)
	}
	b.want(b.Store, key(1, "own", "done"), c)                                             // unwrapped before
	b.one(cold.InsertOrGet(t.Context(), []claim.Request{request(key(1, "x", "new"), 1)})) // grants need no key
	b.kms.set(nil, false)
	b.clock.Advance(b.ring.cfg.RetryAfter)
	b.want(cold, key(1, "own", "done"), c)
}

// TestKMSStalls: one wait per KEK, not one per key, and none that outlasts its
// bound.
func TestKMSStalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		c := result("a result")
		keys := []claim.Key{key(1, "own", "e"), key(1, "x", "e"), key(2, "own", "e"), key(2, "x", "e")}
		for _, k := range keys {
			b.completed(b.Store, k, c)
		}
		cold := b.over(b.newRing(b.kms))
		b.kms.set(nil, true)
		began := time.Now()
		found, err := cold.Get(t.Context(), keys)
		if took := time.Since(began); err != nil || took != time.Second {
			t.Errorf("%v after %v", err, took)
		}
		for i, f := range found {
			if f.Err != nil || f.Record.Completion.Omitted != claim.Unreadable {
				t.Errorf("%d: %v, %+v", i, f.Err, f.Record.Completion)
			}
		}
		began = time.Now()
		fresh := request(key(2, "y", "e"), 1)
		fresh.Record = c
		f, err := cold.InsertOrGet(t.Context(), []claim.Request{fresh})
		if took := time.Since(began); err != nil || f[0].Err != nil || f[0].Record.Completion.Omitted != claim.Unreadable || took != 0 {
			t.Errorf("a write after that: %v, %+v after %v", err, f, took)
		}
		b.clock.Advance(time.Minute)
		began = time.Now()
		b.kms.calls.Store(0)
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if f, err := cold.Get(t.Context(), keys[:1]); err != nil || f[0].Record.Completion.Omitted != claim.Unreadable {
					t.Error(err, f)
				}
			})
		}
		wg.Wait()
		if took := time.Since(began); took != time.Second || b.kms.calls.Load() != 1 {
			t.Errorf("%d calls in %v", b.kms.calls.Load(), took)
		}
		b.clock.Advance(time.Minute)
		b.kms.set(nil, false)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if f, err := cold.Get(ctx, keys); err != nil || f[3].Err != nil {
			t.Errorf("afterwards: %v, %+v", err, f)
		}
	})
}

// TestKMSStallsAtFirst: nor do first keys wait for each other.
func TestKMSStallsAtFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		b.kms.set(nil, true)
		shots := make([]claim.Request, 0, 4)
		for tenant := range claim.TenantID(2) {
			for _, consumer := range []string{"own", "x"} {
				r := request(key(tenant+1, consumer, "e"), 1)
				r.Record = result("a result")
				shots = append(shots, r)
			}
		}
		began := time.Now()
		found, err := b.InsertOrGet(t.Context(), shots)
		if took := time.Since(began); err != nil || took != time.Second || b.kms.calls.Load() != 1 {
			t.Errorf("%v, %d calls in %v", err, b.kms.calls.Load(), took)
		}
		for i, f := range found {
			if raw := b.get(b.inner, shots[i].Key).Record; f.Err != nil || raw.State != claim.Completed || len(raw.Completion.Body) != 0 {
				t.Errorf("%d: %+v, stored %+v", i, f, raw)
			}
			shots[i].Key.EventID = "later"
		}
		b.kms.set(nil, false)
		b.clock.Advance(time.Minute)
		if found, err = b.InsertOrGet(t.Context(), shots); err != nil || len(found[0].Record.Completion.Body) == 0 || len(found[3].Record.Completion.Body) == 0 {
			t.Errorf("afterwards: %v, %+v", err, found)
		}
	})
}

// TestRegistryFails: keys that are known are used; those that are not cannot be
// had, and are not taken for shredded.
func TestRegistryFails(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c := result("a result")
	b.completed(b.Store, key(1, "own", "e"), c)
	broken := &failing{Registry: b.reg}
	ring, err := NewRing(RingConfig{Registry: broken, KEKs: []KEK{b.kms}, Clock: b.clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	broken.load = storage.ErrUnavailable
	b.wantUnread(b.over(ring), key(1, "own", "e"))
	broken.load = nil
	b.clock.Advance(time.Minute)
	b.want(b.over(ring), key(1, "own", "e"), c)
	// An Apply whose answer is lost is sent again, and makes one key.
	broken.unknown = 2
	if _, err := ring.DataKey(t.Context(), 1, "x"); err != nil {
		t.Fatal(err)
	}
	if shared, _ := b.rows(1); len(shared) != 1 {
		t.Errorf("%+v", shared)
	}
}

// failing is a registry whose Loads fail, or whose answers to Apply are lost.
type failing struct {
	registry.Registry
	load    error
	unknown int
}

func (f *failing) Load(ctx context.Context, since registry.Revision) (registry.Changes, error) {
	if f.load != nil {
		return registry.Changes{}, f.load
	}
	return f.Registry.Load(ctx, since)
}

func (f *failing) Apply(ctx context.Context, c registry.Change) (registry.Applied, error) {
	a, err := f.Registry.Apply(ctx, c)
	if f.unknown > 0 {
		f.unknown--
		return registry.Applied{}, storage.ErrUnknown
	}
	return a, err
}

// TestSecretsStaySecret: no key, in any form, is printed or logged.
func TestSecretsStaySecret(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.completed(b.Store, key(1, "own", "e"), result("canary result"))
	b.kms.set(errKMS, false)
	b.get(b.over(b.newRing(b.kms)), key(1, "own", "e"))
	dk, err := b.ring.DataKey(t.Context(), 1, "own")
	if err != nil {
		t.Fatal(err)
	}
	printed := b.log.String() + fmt.Sprintf("%v %+v %#v %s %v %#v", dk, dk, dk, dk, b.kms.LocalKEK, b.kms.LocalKEK)
	for _, secret := range []string{string(dk.secret[:]), hex.EncodeToString(dk.secret[:]), fmt.Sprint(dk.secret), fmt.Sprintf("%#v", dk.secret), "canary"} {
		if strings.Contains(printed, secret) {
			t.Errorf("%q is printed:\n%s", secret, printed)
		}
	}
	if !strings.Contains(b.log.String(), "unwrapped") {
		t.Errorf("the failure is not in the log: %s", b.log)
	}
}

func TestParseKEK(t *testing.T) {
	t.Parallel()
	raw := []byte("0123456789abcdef0123456789ABCDE\xff")
	for name, text := range map[string]string{
		"hex": hex.EncodeToString(raw), "base64": base64.StdEncoding.EncodeToString(raw), "a line": hex.EncodeToString(raw) + "\n",
		"without padding": base64.RawStdEncoding.EncodeToString(raw), "for URLs": " " + base64.RawURLEncoding.EncodeToString(raw),
		"in capitals": strings.ToUpper(hex.EncodeToString(raw)),
	} {
		k, err := ParseKEK("k", []byte(text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want, err := NewLocalKEK("k", raw)
		if err != nil {
			t.Fatal(err)
		}
		wrapped, err := want.Wrap(t.Context(), []byte("x"), []byte("y"))
		if err != nil {
			t.Fatal(err)
		}
		if plain, err := k.Unwrap(t.Context(), wrapped, []byte("y")); err != nil || string(plain) != "x" {
			t.Errorf("%s is another key: %v", name, err)
		}
	}
	for _, text := range []string{
		"", "secret", string(raw), hex.EncodeToString(raw[1:]), hex.EncodeToString(append(raw, 1)), strings.Repeat("0", 64), strings.Repeat("zq", 32),
		base64.StdEncoding.EncodeToString(raw[1:]),
	} {
		if _, err := ParseKEK("k", []byte(text)); !errors.Is(err, ErrKEK) || text != "" && strings.Contains(err.Error(), text) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
