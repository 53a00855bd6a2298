package sealed

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/pebble"
	"github.com/warifu/warifu/storage/registry"
	"github.com/warifu/warifu/storage/storagetest"
)

func TestMain(m *testing.M) {
	if os.Getenv("WARIFU_SOAK") == "" { // the command line still has the last word
		if err := flag.Set("rapid.checks", "10"); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

// anyKeys has a key for everybody, also for tenants that no registry would take.
type anyKeys struct{}

func (anyKeys) DataKey(_ context.Context, tenant claim.TenantID, consumer string) (DataKey, error) {
	return anyKey(tenant, consumer, 7), nil
}

func (anyKeys) Open(_ context.Context, tenant claim.TenantID, consumer string, id uint32) (DataKey, error) {
	return anyKey(tenant, consumer, id), nil
}

func anyKey(tenant claim.TenantID, consumer string, id uint32) DataKey {
	return NewDataKey(id, sha256.Sum256(fmt.Appendf(nil, "%d %q %d", tenant, consumer, id)))
}

// kms is a key-encryption key of a service that may fail or not answer.
type kms struct {
	*LocalKEK
	calls atomic.Int64

	mu struct {
		sync.Mutex
		err   error
		stall bool
	}
}

func newKMS(id string) *kms {
	key := sha256.Sum256([]byte("kms " + id))
	k, err := NewLocalKEK(id, key[:])
	if err != nil {
		panic(err)
	}
	return &kms{LocalKEK: k}
}

var errKMS = errors.New("the service says no")

func (k *kms) set(err error, stall bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mu.err, k.mu.stall = err, stall
}

func (k *kms) trouble(ctx context.Context) error {
	k.calls.Add(1)
	k.mu.Lock()
	err, stall := k.mu.err, k.mu.stall
	k.mu.Unlock()
	if stall {
		<-ctx.Done()
		return ctx.Err()
	}
	return err
}

func (k *kms) Wrap(ctx context.Context, plain, aad []byte) ([]byte, error) {
	if err := k.trouble(ctx); err != nil {
		return nil, err
	}
	return k.LocalKEK.Wrap(ctx, plain, aad)
}

func (k *kms) Unwrap(ctx context.Context, wrapped, aad []byte) ([]byte, error) {
	if err := k.trouble(ctx); err != nil {
		return nil, err
	}
	return k.LocalKEK.Unwrap(ctx, wrapped, aad)
}

// bench is a sealed model with a registry in which tenant 1 has the consumer
// "own", and any others by its own keys, and tenant 2 is like it.
type bench struct {
	*Store
	t     testing.TB
	clock *storagetest.Clock
	inner *storagetest.Model
	reg   registry.Registry
	ring  *Ring
	kms   *kms
	log   *bytes.Buffer
}

func setup(t testing.TB) *bench {
	t.Helper()
	b := &bench{t: t, clock: storagetest.NewClock(storagetest.Start), kms: newKMS("kms-1"), log: &bytes.Buffer{}}
	b.inner = storagetest.NewModel(b.clock.Now, time.Minute)
	b.reg = storagetest.NewRegistryModel(b.clock.Now)
	c := registry.Change{ID: registry.ID{1}, Audit: []registry.AuditEntry{{Actor: "test", Action: "setup"}}}
	for id := range claim.TenantID(2) {
		c.Tenants = append(c.Tenants, registry.Put(registry.Tenant{ID: id + 1, Name: fmt.Sprint("t", id+1), State: registry.TenantActive}))
		c.Consumers = append(c.Consumers, registry.Put(registry.Consumer{Tenant: id + 1, Name: "own", Note: "keep"}))
	}
	b.apply(c)
	b.ring = b.newRing(b.kms)
	b.Store = b.over(b.ring)
	return b
}

func (b *bench) apply(c registry.Change) {
	b.t.Helper()
	if _, err := b.reg.Apply(b.t.Context(), c); err != nil {
		b.t.Fatal(err)
	}
}

// newRing is another server's, over the same registry.
func (b *bench) newRing(keks ...KEK) *Ring {
	b.t.Helper()
	r, err := NewRing(RingConfig{
		Registry: b.reg, KEKs: keks, Clock: b.clock.Now, CallTimeout: time.Second, RetryAfter: 2 * time.Second,
		Logger: slog.New(slog.NewTextHandler(b.log, nil)),
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.sync(r)
	return r
}

func (b *bench) sync(r *Ring) {
	b.t.Helper()
	c, err := b.reg.Load(b.t.Context(), 0)
	if err != nil {
		b.t.Fatal(err)
	}
	r.Update(c)
}

// over is the same store with other keys.
func (b *bench) over(keys KeyRing) *Store {
	b.t.Helper()
	s, err := New(Config{Store: b.inner, Keys: keys})
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

func key(tenant claim.TenantID, consumer, event string) claim.Key {
	return claim.Key{Tenant: tenant, Consumer: consumer, EventID: event}
}

func attempt(n int) (a claim.AttemptID) {
	a[0] = 0xa7
	binary.BigEndian.PutUint64(a[8:], uint64(n))
	return a
}

func request(k claim.Key, n int) claim.Request {
	return claim.Request{
		Key: k, Attempt: attempt(n), InsertBefore: claim.Never, Lease: time.Minute,
		Policy: claim.Policy{Window: time.Hour, Retention: 2 * time.Hour, HoldMax: time.Hour, ResultBytesMax: claim.ResultBytesMax},
	}
}

func result(body string) *claim.Completion {
	c := claim.Completion{
		Outcome: claim.Succeeded, ContentType: "text/plain", Metadata: []claim.Pair{{Name: "n", Value: "v"}}, Body: []byte(body),
	}.Summed()
	return &c
}

// completed claims k and completes it, and returns what the caller is told.
func (b *bench) completed(s *Store, k claim.Key, c *claim.Completion) claim.Record {
	b.t.Helper()
	rec := b.one(s.InsertOrGet(b.t.Context(), []claim.Request{request(k, 1)}))
	f := b.one(s.Transition(b.t.Context(), []claim.Transition{completion(&rec, c)}))
	if !f.Completion.Same(c) || !bytes.Equal(f.Completion.Body, c.Body) {
		b.t.Fatalf("completed as %+v", f.Completion)
	}
	return f
}

func completion(rec *claim.Record, c *claim.Completion) claim.Transition {
	return claim.Transition{Kind: claim.Complete, Key: rec.Key, Attempt: rec.AttemptID, Fence: rec.Fence, Completion: c}
}

// one is the record of an answer to one item, which did not fail.
func (b *bench) one(found []storage.Found, err error) claim.Record {
	b.t.Helper()
	if err != nil || len(found) != 1 || found[0].Err != nil {
		b.t.Fatalf("%v, %+v", err, found)
	}
	return found[0].Record
}

// get is what a read of one key finds.
func (b *bench) get(s storage.Store, k claim.Key) storage.Found {
	b.t.Helper()
	found, err := s.Get(b.t.Context(), []claim.Key{k})
	if err != nil || len(found) != 1 {
		b.t.Fatalf("%v, %d items", err, len(found))
	}
	return found[0]
}

// want demands that a read finds c.
func (b *bench) want(s storage.Store, k claim.Key, c *claim.Completion) {
	b.t.Helper()
	if f := b.get(s, k); f.Err != nil || !f.Record.Completion.Same(c) || !bytes.Equal(f.Record.Completion.Body, c.Body) || f.Record.Completion.Omitted != c.Omitted {
		b.t.Fatalf("%v, %+v, want %+v", f.Err, f.Record.Completion, c)
	}
}

// wantGone demands that a read finds c without its bytes, and that another
// attempt is told that it is a duplicate.
func (b *bench) wantGone(s *Store, k claim.Key, c *claim.Completion) {
	b.t.Helper()
	f := b.get(s, k)
	if got := f.Record.Completion; f.Err != nil || got == nil || got.Omitted != claim.Shredded || got.Body != nil ||
		got.ContentType != c.ContentType || got.Outcome != c.Outcome || got.Sum == c.Sum {
		b.t.Fatalf("%v, %+v", f.Err, f.Record.Completion)
	}
	again := request(k, 99)
	rec := b.one(s.InsertOrGet(b.t.Context(), []claim.Request{again}))
	step := claim.Decide(&rec, &again, claim.FromTime(b.clock.Now()))
	if step.Answer.Decision != claim.Duplicate || step.Answer.Completion.Omitted != claim.Shredded {
		b.t.Fatalf("another attempt is answered %+v", step)
	}
}

// wantUnread demands that k, which is completed, is answered so without its
// bytes, to readers, listings and another attempt, and returns what a read finds.
func (b *bench) wantUnread(s *Store, k claim.Key) *claim.Completion {
	b.t.Helper()
	check := func(what string, c *claim.Completion) {
		b.t.Helper()
		if c == nil || c.Omitted != claim.Unreadable || c.Body != nil || c.Outcome == claim.NoOutcome {
			b.t.Fatalf("%s: %+v", what, c)
		}
	}
	f := b.get(s, k)
	if f.Err != nil || f.Record.State != claim.Completed {
		b.t.Fatalf("read: %v, %+v", f.Err, f.Record)
	}
	check("read", f.Record.Completion)
	page, err := s.List(b.t.Context(), storage.List{Tenant: k.Tenant, Consumer: k.Consumer, Prefix: k.EventID, Limit: 1})
	if err != nil || len(page.Records) != 1 {
		b.t.Fatalf("listed: %v, %+v", err, page)
	}
	check("listed", page.Records[0].Completion)
	again := request(k, 99)
	rec := b.one(s.InsertOrGet(b.t.Context(), []claim.Request{again}))
	step := claim.Decide(&rec, &again, claim.FromTime(b.clock.Now()))
	if step.Answer.Decision != claim.Duplicate || step.Answer.OwnAttempt {
		b.t.Fatalf("another attempt is answered %+v", step)
	}
	check("another attempt", step.Answer.Completion)
	return f.Record.Completion
}

// wantBelieved demands that the owner of rec, that sends c again in both ways, is
// told that it is done, and that nobody else is.
func (b *bench) wantBelieved(s *Store, rec *claim.Record, c *claim.Completion) {
	b.t.Helper()
	again := completion(rec, c)
	found := b.one(s.Transition(b.t.Context(), []claim.Transition{again}))
	if reply, more := again.Explain(&found, claim.FromTime(b.clock.Now())); more || reply.Status != claim.OK {
		b.t.Errorf("completed again: %+v", reply)
	}
	shot := request(rec.Key, 0)
	shot.Attempt, shot.Record = rec.AttemptID, c
	found = b.one(s.InsertOrGet(b.t.Context(), []claim.Request{shot}))
	if a := claim.Decide(&found, &shot, claim.FromTime(b.clock.Now())).Answer; a.Decision != claim.Granted || !a.Recorded {
		b.t.Errorf("claimed again: %+v", a)
	}
	stranger := again
	stranger.Attempt = attempt(98)
	found = b.one(s.Transition(b.t.Context(), []claim.Transition{stranger}))
	if reply, _ := stranger.Explain(&found, claim.FromTime(b.clock.Now())); reply.Status != claim.Stale {
		b.t.Errorf("a stranger: %+v", reply)
	}
}

func openPebble(t storagetest.T, fs vfs.FS, clock func() time.Time, grace time.Duration) *pebble.Store {
	t.Helper()
	s, err := pebble.Open(pebble.Config{
		Dir: "store", FS: fs, Clock: clock, SweepGrace: grace, CacheBytes: 1 << 20, LogSegmentBytes: 64 << 10,
		MemTableBytes: 16 << 10, FilterKeysMin: 1 << 10, Fatal: func(message string) { panic(message) },
	})
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil && !errors.Is(err, storage.ErrClosed) {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// tenantOne makes tenant 1 with the consumer "own".
func tenantOne() registry.Change {
	return registry.Change{
		ID: registry.ID{1}, Audit: []registry.AuditEntry{{Actor: "test", Action: "setup"}},
		Tenants:   []registry.Write[registry.Tenant]{registry.Put(registry.Tenant{ID: 1, Name: "t", State: registry.TenantActive})},
		Consumers: []registry.Write[registry.Consumer]{registry.Put(registry.Consumer{Tenant: 1, Name: "own"})},
	}
}

func listOf(tenant claim.TenantID) storage.List { return storage.List{Tenant: tenant, Limit: 100} }
