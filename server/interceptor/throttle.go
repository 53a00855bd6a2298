package interceptor

import (
	"hash/maphash"
	"net/netip"
	"sync/atomic"
	"time"
)

const (
	// FailuresPerMinute is how many calls without a valid key one address may
	// make in a minute of the clock before it is told to stop.
	FailuresPerMinute = 100
	throttleWindow    = time.Minute
	// throttleSlots bounds the memory of a Throttle: 64 KiB. Addresses that fall
	// into one slot share its count, which costs only callers whose keys are
	// wrong an answer that tells them less.
	throttleSlots = 8192
	// networkBits is what counts as one address of IPv6: whoever has one
	// address there has a network of them.
	networkBits = 64
)

// Throttle counts calls without a valid key by the address that they come from.
// It is bounded whatever addresses come, and safe for concurrent use.
type Throttle struct {
	max     uint32
	seed    maphash.Seed // nobody outside knows which addresses share a slot
	slots   [throttleSlots]atomic.Uint64
	refused atomic.Int64
}

// NewThrottle returns a throttle of that many failures per minute for each
// address; FailuresPerMinute when it is not positive.
func NewThrottle(perMinute int) *Throttle {
	if perMinute <= 0 || perMinute > 1<<31 {
		perMinute = FailuresPerMinute
	}
	return &Throttle{max: uint32(perMinute), seed: maphash.MakeSeed()}
}

// Failed counts a failure of the peer at now, and reports whether it is still
// within what one may make. The peer is an address with or without a port;
// calls that have none count together.
func (t *Throttle) Failed(peer string, now time.Time) bool {
	slot := &t.slots[maphash.Comparable(t.seed, address(peer))%throttleSlots]
	minute := uint32(now.Unix() / int64(throttleWindow/time.Second)) //nolint:gosec // only compared for equality
	for {
		old := slot.Load()
		count := uint32(1)
		if uint32(old>>32) == minute {
			count = uint32(old) + 1 //nolint:gosec // the lower half
		}
		if count > t.max {
			t.refused.Add(1)
			return false
		}
		if slot.CompareAndSwap(old, uint64(minute)<<32|uint64(count)) {
			return true
		}
	}
}

// Refused is how many calls were told to stop so far.
func (t *Throttle) Refused() int64 { return t.refused.Load() }

// address is who a peer is, without what it can change at will: the port, and
// the lower half of an IPv6 address. What is no IP address is the zero address.
func address(peer string) netip.Addr {
	var addr netip.Addr
	if with, err := netip.ParseAddrPort(peer); err == nil {
		addr = with.Addr()
	} else if bare, err := netip.ParseAddr(peer); err == nil {
		addr = bare
	}
	addr = addr.Unmap().WithZone("")
	if addr.Is6() {
		network, err := addr.Prefix(networkBits)
		if err != nil {
			return netip.Addr{}
		}
		return network.Addr()
	}
	return addr
}
