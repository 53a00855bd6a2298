package bloom

import (
	"encoding/binary"
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"

	bits "github.com/bits-and-blooms/bloom/v3"

	"github.com/warifu/warifu/storage/claim"
)

const (
	// filterShards spreads the locks; the bit sets of the library are not safe
	// for concurrent use.
	filterShards = 64
	// memoryMin is enough for two generations of one word per shard, and more
	// than nothing to filter with.
	memoryMin = 64 << 10
)

// generation is one bloom filter, in shards. Its hash key is its own and
// random: nobody outside can make keys that collide.
type generation struct {
	seed      maphash.Seed
	capacity  int64 // keys for which the false positive rate holds
	tenantMax int64 // keys of one tenant
	bytes     int64

	keys    atomic.Int64 // added, as far as the filter can tell them apart
	tenants sync.Map     // claim.TenantID → *atomic.Int64
	shards  [filterShards]shard
}

type shard struct {
	sync.RWMutex
	filter *bits.BloomFilter
}

// newGeneration is sized for capacity keys, or as many as fit bytesMax.
func newGeneration(capacity int64, falsePositives, tenantShare float64, bytesMax int64) *generation {
	m, k := bits.EstimateParameters(uint(capacity), falsePositives) //nolint:gosec // positive
	if bitsMax := uint(bytesMax) * 8; m > bitsMax {                 //nolint:gosec // positive, as Config was checked
		m = bitsMax
		capacity = int64(float64(m) * math.Ln2 * math.Ln2 / -math.Log(falsePositives))
	}
	perShard := max(64, (m+filterShards-1)/filterShards)
	g := &generation{
		seed: maphash.MakeSeed(), capacity: max(1, capacity), tenantMax: math.MaxInt64,
		bytes: int64(perShard) * filterShards / 8, //nolint:gosec // bounded by bytesMax
	}
	if tenantShare < 1 {
		g.tenantMax = max(1, int64(float64(capacity)*tenantShare))
	}
	for i := range g.shards {
		g.shards[i].filter = bits.New(perShard, k)
	}
	return g
}

// place returns the shard of a key and what the shard's filter is asked. 64
// bits are enough: two keys of 100 million share them with a chance of 0.03 %,
// and that costs one read.
func (g *generation) place(k claim.Key) (*shard, [8]byte) {
	var h maphash.Hash
	h.SetSeed(g.seed)
	var prefix [16]byte
	binary.LittleEndian.PutUint64(prefix[:8], uint64(k.Tenant)) //nolint:gosec // its bits
	binary.LittleEndian.PutUint64(prefix[8:], uint64(len(k.Consumer)))
	_, _ = h.Write(prefix[:]) // a maphash never fails
	_, _ = h.WriteString(k.Consumer)
	_, _ = h.WriteString(k.EventID)
	sum := h.Sum64()
	var data [8]byte
	binary.LittleEndian.PutUint64(data[:], sum)
	return &g.shards[sum%filterShards], data
}

func (g *generation) maybeHas(k claim.Key) bool {
	s, data := g.place(k)
	s.RLock()
	defer s.RUnlock()
	return s.filter.Test(data[:])
}

// add is bounded per tenant. It reports whether the key was new to the filter.
func (g *generation) add(k claim.Key) bool {
	tenant := g.tenant(k.Tenant)
	if tenant.Load() >= g.tenantMax {
		return false
	}
	s, data := g.place(k)
	s.Lock()
	known := s.filter.TestAndAdd(data[:])
	s.Unlock()
	if known {
		return false
	}
	tenant.Add(1)
	g.keys.Add(1)
	return true
}

func (g *generation) tenant(id claim.TenantID) *atomic.Int64 {
	if n, ok := g.tenants.Load(id); ok {
		return n.(*atomic.Int64)
	}
	n, _ := g.tenants.LoadOrStore(id, new(atomic.Int64))
	return n.(*atomic.Int64)
}

// fill is the share of bits that are set. It counts them all.
func (g *generation) fill() float64 {
	set, all := uint(0), uint(0)
	for i := range g.shards {
		s := &g.shards[i]
		s.RLock()
		set += s.filter.BitSet().Count()
		all += s.filter.Cap()
		s.RUnlock()
	}
	return float64(set) / float64(all)
}
