package tenant

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/warifu/warifu/storage/claim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var now = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

// one builds the table of a tenant with a single consumer, "c".
func one(c ConsumerConfig) (*Consumer, error) {
	c.Name = "c"
	table, err := NewTable([]Config{{ID: 1, Name: "shop", Consumers: []ConsumerConfig{c}}})
	if err != nil {
		return nil, err
	}
	shop, _ := table.Tenant("shop")
	built, _, err := shop.Consumer("c")
	return built, err
}

// TestPolicyRules: one row per rule, at the limit and beyond it.
func TestPolicyRules(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	rows := []struct {
		name   string
		within []ConsumerConfig
		beyond []ConsumerConfig
		says   string
	}{
		{
			"window", []ConsumerConfig{{Window: time.Second}, {Window: 400 * day}},
			[]ConsumerConfig{{Window: time.Second - 1}, {Window: 400*day + 1}, {Window: -day}, {Window: math.MinInt64}}, "redelivery window",
		},
		{
			"retention", []ConsumerConfig{{Window: time.Hour, Retention: time.Hour}, {Retention: 10_000 * day}},
			[]ConsumerConfig{{Window: time.Hour, Retention: time.Hour - 1}, {Retention: -1}, {Window: 30 * time.Hour, Retention: 24 * time.Hour}}, "shorter than the redelivery window",
		},
		{
			"longest lease", []ConsumerConfig{{LeaseMax: time.Second}, {LeaseMax: day}},
			[]ConsumerConfig{{LeaseMax: time.Second - 1}, {LeaseMax: day + 1}, {LeaseMax: -1}}, "longest lease",
		},
		{
			"default lease", []ConsumerConfig{{LeaseDefault: time.Second}, {LeaseDefault: time.Minute, LeaseMax: time.Minute}},
			[]ConsumerConfig{{LeaseDefault: time.Second - 1}, {LeaseDefault: time.Minute + 1, LeaseMax: time.Minute}, {LeaseDefault: -1}}, "default lease",
		},
		{
			"hold", []ConsumerConfig{{LeaseMax: time.Hour, HoldMax: time.Hour}, {HoldMax: 400 * day}},
			[]ConsumerConfig{{LeaseMax: time.Hour, HoldMax: time.Hour - 1}, {HoldMax: time.Hour}, {HoldMax: -1}}, "maximum hold",
		},
		{
			"result", []ConsumerConfig{{ResultBytesMax: 1}, {ResultBytesMax: 512 << 10}},
			[]ConsumerConfig{{ResultBytesMax: 512<<10 + 1}, {ResultBytesMax: -1}, {ResultBytesMax: math.MaxInt}}, "result limit",
		},
		{
			"HOLD and FAIL_OPEN", []ConsumerConfig{{Hold: true}, {OnUnavailable: FailOpen}, {Hold: true, OnUnavailable: FailOpen, AcceptHoldFailOpen: true}},
			[]ConsumerConfig{{Hold: true, OnUnavailable: FailOpen}}, "HOLD and FAIL_OPEN contradict each other",
		},
		{"failure policy", nil, []ConsumerConfig{{OnUnavailable: 2}}, "failure policy"},
		{
			"raised", []ConsumerConfig{{RetentionRaisedAt: now, RetentionRaisedFrom: 48 * time.Hour}},
			[]ConsumerConfig{{RetentionRaisedAt: now}, {RetentionRaisedFrom: time.Hour}, {RetentionRaisedAt: now, RetentionRaisedFrom: 48*time.Hour + 1}, {RetentionRaisedAt: now, RetentionRaisedFrom: -1}}, "retention was raised",
		},
	}
	for _, row := range rows {
		for i, c := range row.within {
			if _, err := one(c); err != nil {
				t.Errorf("%s, within %d: %v", row.name, i, err)
			}
		}
		for i, c := range row.beyond {
			if _, err := one(c); err == nil || !strings.Contains(err.Error(), row.says) && !strings.Contains(err.Error(), "belong together") {
				t.Errorf("%s, beyond %d: %v", row.name, i, err)
			}
		}
	}
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	c, err := one(ConsumerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if c.Policy != claim.DefaultPolicy() || c.LeaseDefault != 30*time.Second || c.LeaseMax != 24*time.Hour || c.OnUnavailable != FailClosed ||
		c.DigestRequired || c.AcceptNoCommonScheme || c.Skew != 5*time.Minute || !reflect.DeepEqual(c.History, claim.History{Retention: 48 * time.Hour}) {
		t.Errorf("defaults = %+v", c)
	}
	short, err := one(ConsumerConfig{Window: 4 * time.Hour, LeaseMax: 10 * time.Second})
	if err != nil || short.Policy.Retention != 8*time.Hour || short.LeaseDefault != 10*time.Second {
		t.Errorf("window 4 h = %+v, %v", short, err)
	}
	raised, err := one(ConsumerConfig{RetentionRaisedAt: now, RetentionRaisedFrom: time.Hour})
	if err != nil || !slices.Equal(raised.History.Raises, []claim.Raise{{At: claim.FromTime(now), From: time.Hour}}) {
		t.Errorf("raised = %+v, %v", raised, err)
	}
}

// TestVersion changes with every value that a client could notice.
func TestVersion(t *testing.T) {
	t.Parallel()
	seen := map[string]int{}
	for i, c := range []ConsumerConfig{
		{},
		{Window: time.Hour, Retention: 48 * time.Hour},
		{Retention: 49 * time.Hour},
		{LeaseDefault: time.Minute},
		{LeaseMax: time.Hour},
		{HoldMax: 25 * time.Hour},
		{Hold: true},
		{AttemptsMax: 3},
		{OnUnavailable: FailOpen},
		{ResultBytesMax: 1},
		{DigestRequired: true},
		{AcceptNoCommonScheme: true},
		{RetentionRaisedAt: now, RetentionRaisedFrom: time.Hour},
	} {
		built, err := one(c)
		if err != nil {
			t.Fatal(err)
		}
		if other, same := seen[built.Version]; same || len(built.Version) != 16 {
			t.Errorf("policies %d and %d have version %q", i, other, built.Version)
		}
		seen[built.Version] = i
	}
	again, err := one(ConsumerConfig{Window: claim.WindowDefault})
	if err != nil {
		t.Fatal(err)
	}
	if _, same := seen[again.Version]; !same {
		t.Error("a default that is written out changes the version")
	}
}

// TestNewTableReportsAllFaults: one look repairs a file.
func TestNewTableReportsAllFaults(t *testing.T) {
	t.Parallel()
	_, good := NewKey("test")
	table, err := NewTable([]Config{
		{ID: 1, Name: "shop", Keys: []Key{good, {ID: "a_b"}}, Default: ConsumerConfig{Name: "x", Window: 1}, Consumers: []ConsumerConfig{{Name: "a b"}, {Name: "c"}, {Name: "c"}, {Name: "d", HoldMax: 1, LeaseMax: 1}}},
		{ID: 1, Name: "other", Keys: []Key{good}},
		{ID: 2, Name: "shop", Keys: []Key{{ID: "k", SecretSHA256: [32]byte{1}, Scopes: 0x80}}},
		{ID: 0, Name: "zero"},
		{ID: 3, Name: ""},
	})
	if table != nil || err == nil {
		t.Fatal("a table full of faults was built")
	}
	for _, want := range []string{
		`tenant "shop": default policy: redelivery window 1ns`, "the default policy has no name", // the name is named only where the policy is right
		`consumer "a b": name is not`, `consumer "c": is declared twice`, `consumer "d": longest lease 1ns`, `consumer "d": default lease`,
		`key "a_b": key ID is not`, `key "a_b": the SHA-256`, `id 1 is tenant "shop"'s`, `tenant "shop" is configured twice`,
		"this key ID is configured twice", "scopes 0x80 are unknown", `id 0 is not positive`, `tenants[4]: name ""`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q:\n%v", want, err)
		}
	}
}

func TestConsumer(t *testing.T) {
	t.Parallel()
	table, err := NewTable([]Config{
		{ID: 1, Name: "open", Default: ConsumerConfig{LeaseDefault: time.Minute}, Consumers: []ConsumerConfig{{Name: "known", Hold: true}}},
		{ID: 2, Name: "strict", Strict: true, Consumers: []ConsumerConfig{{Name: "known"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	open, _ := table.Tenant("open")
	strict, _ := table.Tenant("strict")
	if c, declared, err := open.Consumer("known"); err != nil || !declared || !c.Policy.Hold {
		t.Errorf("declared = %+v, %v, %v", c, declared, err)
	}
	if c, declared, err := open.Consumer("other"); err != nil || declared || c.LeaseDefault != time.Minute {
		t.Errorf("undeclared = %+v, %v, %v", c, declared, err)
	}
	if c, _, err := strict.Consumer("other"); c != nil || !errors.Is(err, ErrUnknownConsumer) {
		t.Errorf("strict = %+v, %v", c, err)
	}
	if _, declared, err := strict.Consumer("known"); err != nil || !declared {
		t.Errorf("strict, declared = %v, %v", declared, err)
	}
}

func TestAuthenticate(t *testing.T) {
	t.Parallel()
	text, key := NewKey("live")
	claimOnly, key2 := NewKey("live")
	key2.Scopes = ScopeClaim
	expiring, key3 := NewKey("live")
	key3.ExpiresAt = now
	revoked, key4 := NewKey("live")
	key4.Revoked = true
	table, err := NewTable([]Config{{ID: 7, Name: "shop", Keys: []Key{key, key2, key3, key4}}})
	if err != nil {
		t.Fatal(err)
	}
	d := NewDirectory(table)
	p, ok := d.Authenticate(text, now)
	if !ok || p.Tenant.ID != 7 || p.KeyID != key.ID || p.Scopes != ScopeDefault {
		t.Errorf("a good key = %+v, %v", p, ok)
	}
	if p, ok := d.Authenticate(claimOnly, now); !ok || p.Scopes.Has(ScopeRead) || !p.Scopes.Has(ScopeClaim) {
		t.Errorf("a key with one scope = %+v, %v", p, ok)
	}
	if _, ok := d.Authenticate(expiring, now.Add(-1)); !ok {
		t.Error("refused before it expires")
	}
	for what, credential := range map[string]string{"expired": expiring, "revoked": revoked, "empty": "", "of nobody": func() string { s, _ := NewKey("live"); return s }()} {
		if p, ok := d.Authenticate(credential, now); ok || p != nil {
			t.Errorf("%s: %+v", what, p)
		}
	}
	// Every other secret is refused, one character away included.
	id, secret, _ := ParseKey(text)
	for i := range secret {
		changed := []byte(secret)
		changed[i] = "0123456789abcdefghjkmnpqrstvwxyz"[(strings.IndexByte("0123456789abcdefghjkmnpqrstvwxyz", secret[i])+1)%32]
		body := "wf_live_" + id + "_" + string(changed)
		if _, ok := d.Authenticate(body+"_"+checksum(body), now); ok {
			t.Fatalf("a secret that differs at %d is accepted", i)
		}
	}
}

// TestSwapUnderLoad: readers see the old table or the new one, whole.
func TestSwapUnderLoad(t *testing.T) {
	t.Parallel()
	text, key := NewKey("test")
	build := func(id claim.TenantID, name string) *Table {
		table, err := NewTable([]Config{{ID: id, Name: name, Keys: []Key{key}}})
		if err != nil {
			t.Fatal(err)
		}
		return table
	}
	a, b := build(1, "a"), build(2, "b")
	d := NewDirectory(a)
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for range 1000 {
				p, ok := d.Authenticate(text, now)
				if !ok || (p.Tenant.ID == 1) != (p.Tenant.Name == "a") {
					t.Errorf("read %+v", p)
					return
				}
			}
		})
	}
	for range 200 {
		d.Swap(b)
		d.Swap(a)
	}
	readers.Wait()
}

func TestKeyForm(t *testing.T) {
	t.Parallel()
	text, key := NewKey("live")
	id, secret, ok := ParseKey(text)
	if !ok || id != key.ID || sha256.Sum256([]byte(secret)) != key.SecretSHA256 || !strings.HasPrefix(text, "wf_live_"+id+"_") {
		t.Fatalf("%q parses to %q, %v", text, id, ok)
	}
	if strings.Contains(text, hex.EncodeToString(key.SecretSHA256[:4])) {
		t.Error("the key shows its hash")
	}
	body := text[:strings.LastIndexByte(text, '_')]
	if want := fmt.Sprintf("%s_%08x", body, crc32.ChecksumIEEE([]byte(body))); text != want {
		t.Errorf("the checksum of %q is not the CRC-32 (IEEE) of what precedes it", text)
	}
	if other, _ := NewKey("live"); other == text {
		t.Error("two keys are the same")
	}
	if odd, _ := NewKey("NOT an environment"); !strings.HasPrefix(odd, "wf_key_") {
		t.Errorf("an odd environment makes %q", odd)
	}
	// Every single typing error is noticed without a look-up.
	for i := range len(text) {
		wrong := []byte(text)
		wrong[i]++
		if _, _, ok := ParseKey(string(wrong)); ok {
			t.Errorf("%q parses", wrong)
		}
	}
	for i := range len(text) {
		if _, _, ok := ParseKey(text[:i]); ok {
			t.Errorf("%q parses", text[:i])
		}
	}
}

// TestLookupsDoNotAllocate: they are on the path of every request.
func TestLookupsDoNotAllocate(t *testing.T) {
	text, key := NewKey("test")
	table, err := NewTable([]Config{{ID: 1, Name: "shop", Keys: []Key{key}, Consumers: []ConsumerConfig{{Name: "c"}}}})
	if err != nil {
		t.Fatal(err)
	}
	d := NewDirectory(table)
	stranger, _ := NewKey("test")
	for name, f := range map[string]func(){
		"good key":   func() { _, _ = d.Authenticate(text, now) },
		"stranger":   func() { _, _ = d.Authenticate(stranger, now) },
		"malformed":  func() { _, _ = d.Authenticate("wf_x", now) },
		"declared":   func() { p, _ := d.Authenticate(text, now); _, _, _ = p.Tenant.Consumer("c") },
		"undeclared": func() { p, _ := d.Authenticate(text, now); _, _, _ = p.Tenant.Consumer("other") },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// FuzzParseKey: what parses has the form, and only a key that was made for the
// table is let in.
func FuzzParseKey(f *testing.F) {
	text, key := NewKey("fuzz")
	table, err := NewTable([]Config{{ID: 1, Name: "shop", Keys: []Key{key}}})
	if err != nil {
		f.Fatal(err)
	}
	d := NewDirectory(table)
	body := "wf_x_" + strings.Repeat("k", NameCharsMax) + "_" + strings.Repeat("s", secretChars)
	for _, seed := range []string{text, "", "wf_", "wf____", body + "_" + checksum(body), strings.Repeat("_", 200), "wf_live_\xff_a_b"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, secret, ok := ParseKey(s)
		if ok {
			parts := strings.Split(s, "_")
			if len(parts) != 5 || parts[2] != id || parts[3] != secret || !validKeyID(id) || len(secret) != secretChars ||
				parts[4] != checksum(strings.Join(parts[:4], "_")) {
				t.Fatalf("%q parses to %q %q", s, id, secret)
			}
		} else if id != "" || secret != "" {
			t.Fatalf("%q does not parse, and leaves %q %q", s, id, secret)
		}
		// Another environment's prefix with a right checksum is the same secret.
		_, in := d.Authenticate(s, now)
		if want := ok && id == key.ID && sha256.Sum256([]byte(secret)) == key.SecretSHA256; in != want {
			t.Fatalf("%q: let in = %v", s, in)
		}
	})
}
