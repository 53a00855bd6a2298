package quota

import (
	"time"

	"github.com/warifu/warifu/storage/claim"
)

// The shape of rates.
const (
	// BurstDefault is how much of its rate a tenant that was idle may take at
	// once. For items it is at least one batch, which otherwise could never be
	// admitted whole.
	BurstDefault = 2 * time.Second
	// DebtMax bounds how far calls that are never refused push a rate below
	// zero: a tenant that stops them is admitted again after that time.
	DebtMax = 10 * time.Second
	// RateMax is the largest rate that is metered; what is above it is held to
	// it. Debts and bursts of it fit into the arithmetic.
	RateMax = 100_000_000
)

// token is the unit of a bucket: a nanosecond at a rate of one per second makes
// one, so that refilling is exact and has no rounding to gain from.
const token = int64(time.Second)

// bucket is a token bucket that may be in debt. Its zero value is full at
// whatever rate it first meets.
type bucket struct {
	tokens int64 // in units of 1/token; below 0: debt
	at     time.Duration
	rate   int64 // per second, as it was last told; 0: not limited
}

// shape is a limit as a bucket works with it.
type shape struct{ rate, burst int64 }

// shapeOf returns the shape of a rate. least is the smallest burst, in whole
// tokens.
func shapeOf(rate, least int64) shape {
	rate = min(rate, RateMax)
	return shape{rate: rate, burst: max(rate*int64(BurstDefault/time.Second), least) * token}
}

func requestShape(l *Limits) shape { return shapeOf(l.Requests, 1) }
func itemShape(l *Limits) shape    { return shapeOf(l.Items, claim.BatchItemsMax) }

func (s shape) debtMax() int64 { return s.rate * int64(DebtMax) }

// turn brings the bucket to now and to what the limit is from now on. The time
// before counts at the rate that was in force.
func (b *bucket) turn(now time.Duration, s shape) {
	if b.rate == 0 { // it was not limited, or is new
		b.tokens, b.at, b.rate = s.burst, now, s.rate
		return
	}
	if elapsed := int64(now - b.at); elapsed > 0 {
		if missing := s.burst - b.tokens; elapsed > missing/b.rate {
			b.tokens = max(b.tokens, s.burst)
		} else {
			b.tokens += elapsed * b.rate
		}
		b.at = now
	}
	b.tokens = max(min(b.tokens, s.burst), -s.debtMax())
	b.rate = s.rate
}

// take takes up to n whole tokens and returns how many it got.
func (b *bucket) take(n int64) int64 {
	got := min(n, max(b.tokens, 0)/token)
	b.tokens -= got * token
	return got
}

// charge takes n tokens, there or not, as far as the debt goes.
func (b *bucket) charge(n int64, s shape) {
	n = min(n, (b.tokens+s.debtMax())/token+1) // more makes no difference, and could overflow
	b.tokens = max(b.tokens-n*token, -s.debtMax())
}

// wait is how long it takes until n tokens are there, or a full bucket.
func (b *bucket) wait(n int64, s shape) time.Duration {
	missing := min(n, s.burst/token)*token - b.tokens
	if missing <= 0 {
		return 0
	}
	return time.Duration((missing + s.rate - 1) / s.rate)
}
