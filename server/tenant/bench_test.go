package tenant

import (
	"fmt"
	"testing"
	"time"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

func benchDirectory(b *testing.B) (*Directory, string) {
	b.Helper()
	text, key := NewKey("test")
	table, err := NewTable([]Config{{ID: 1, Name: "shop", Keys: []Key{key}, Consumers: []ConsumerConfig{{Name: "c"}}}})
	if err != nil {
		b.Fatal(err)
	}
	return NewDirectory(table), text
}

// BenchmarkAuthenticate moves time on by a millisecond for each call: a
// thousandth of them write down when the key was used.
func BenchmarkAuthenticate(b *testing.B) {
	d, text := benchDirectory(b)
	b.ReportAllocs()
	at := now
	for b.Loop() {
		at = at.Add(time.Millisecond)
		if _, ok := d.Authenticate(text, at); !ok {
			b.Fatal("refused")
		}
	}
}

func BenchmarkAuthenticateParallel(b *testing.B) {
	d, text := benchDirectory(b)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		at := now
		for pb.Next() {
			at = at.Add(time.Microsecond)
			if _, ok := d.Authenticate(text, at); !ok {
				b.Fatal("refused")
			}
		}
	})
}

const (
	manyTenants   = 10_000
	manyConsumers = 10
	manyKeys      = 2
)

// many is an installation of 10^4 tenants with 10 consumers and 2 keys each.
func many() *registry.Changes {
	c := &registry.Changes{Full: true, Revision: 1}
	for i := range claim.TenantID(manyTenants) {
		c.Tenants = append(c.Tenants, registry.Tenant{ID: i + 1, Name: fmt.Sprintf("t%d", i), State: registry.TenantActive})
		for j := range manyConsumers {
			c.Consumers = append(c.Consumers, registry.Consumer{Tenant: i + 1, Name: fmt.Sprintf("c%d", j), Window: time.Hour})
		}
		for j := range manyKeys {
			c.Keys = append(c.Keys, registry.Key{Tenant: i + 1, ID: fmt.Sprintf("k%d.%d", i, j), Secret: registry.Hash{1}, Scopes: []string{"claim"}})
		}
	}
	return c
}

func manyRows(b *testing.B) *Rows {
	b.Helper()
	r, err := NewRows(nil)
	if err != nil {
		b.Fatal(err)
	}
	if faults := r.Merge(many()); len(faults) > 0 {
		b.Fatal(faults)
	}
	return r
}

// BenchmarkTableOneKey is one revoked key among 20,000 of 10^4 tenants: at most
// 50 ms, and by far.
func BenchmarkTableOneKey(b *testing.B) {
	r := manyRows(b)
	r.Table()
	change := &registry.Changes{Keys: []registry.Key{{Tenant: 7, ID: "k6.0", Secret: registry.Hash{1}, Revoked: 1}}}
	for b.Loop() {
		change.Revision++
		r.Merge(change)
		r.Table()
	}
}

// BenchmarkTableWhole is the first Load of the same installation.
func BenchmarkTableWhole(b *testing.B) {
	for b.Loop() {
		manyRows(b).Table()
	}
}

// BenchmarkUsed is the walk over all keys, once a minute.
func BenchmarkUsed(b *testing.B) {
	d := NewDirectory(manyRows(b).Table())
	for b.Loop() {
		d.Used()
	}
}
