package tenant

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/warifu/warifu/storage/claim"
)

// OnUnavailable says what a claim means while the store cannot be asked.
type OnUnavailable uint8

// The failure policies. FailClosed is the default: a consumer that declares
// nothing has not promised that its effects tolerate duplicates.
const (
	FailClosed OnUnavailable = iota // an error: the event is not handled now
	FailOpen                        // UNPROTECTED: it may be handled, and is journaled
)

// retentionPerWindow is how many redelivery windows a key is remembered when
// no retention is given.
const retentionPerWindow = 2

// ConsumerConfig describes one consumer. Zero values are defaults.
type ConsumerConfig struct {
	// Name is 1-128 characters of [A-Za-z0-9._/-].
	Name string
	// Window is how long after the first delivery the upstream can still
	// redeliver, its dead-letter redrive included: 1 s-400 d, 24 h when 0.
	Window time.Duration
	// Retention is how long a key is remembered: at least Window, twice it
	// when 0.
	Retention time.Duration
	// LeaseDefault holds for claims that name no lease: 1 s-LeaseMax; 30 s, or
	// LeaseMax where that is shorter, when 0.
	LeaseDefault time.Duration
	// LeaseMax bounds what claims may ask for: 1 s-24 h, 24 h when 0.
	LeaseMax time.Duration
	// HoldMax bounds how long one grant may be extended in all: at least
	// LeaseMax, 24 h when 0.
	HoldMax time.Duration
	// Hold: a lapsed lease is in doubt until somebody resolves it. Otherwise
	// the next claim is granted.
	Hold bool
	// AttemptsMax is how many attempts may lapse before the event is in doubt;
	// 0: no cap.
	AttemptsMax uint32
	// OnUnavailable is the failure policy.
	OnUnavailable OnUnavailable
	// AcceptHoldFailOpen accepts Hold together with FailOpen, which contradict
	// each other: one says "never twice", the other "rather twice than not".
	AcceptHoldFailOpen bool
	// ResultBytesMax is 0-512 KiB, 256 KiB when 0.
	ResultBytesMax int
	// DigestRequired refuses claims without a digest.
	DigestRequired bool
	// AcceptNoCommonScheme: digests that share no scheme agree. Otherwise they
	// are a mismatch.
	AcceptNoCommonScheme bool
	// RetentionRaisedAt and RetentionRaisedFrom say when Retention was last
	// raised, and from what. What was forgotten under the old one stays
	// forgotten, and the horizon knows. Both or neither. They are for
	// configurations, which remember one raise.
	RetentionRaisedAt   time.Time
	RetentionRaisedFrom time.Duration
	// Raises are all that is known of earlier raises, in any order.
	Raises []claim.Raise
}

// Consumer is the policy in force for one consumer. It is immutable.
type Consumer struct {
	// Policy holds the values that decisions need and records keep.
	Policy claim.Policy
	// LeaseDefault and LeaseMax are for claims and extensions.
	LeaseDefault, LeaseMax time.Duration
	OnUnavailable          OnUnavailable
	DigestRequired         bool
	AcceptNoCommonScheme   bool
	// History is what the horizon depends on.
	History claim.History
	// Skew is how far in the future event times may be.
	Skew time.Duration
	// Version is 16 hexadecimal characters that change whenever the policy does.
	Version string
	// retired: it was declared, and is not any more; the policy is the default
	// one, with the history of the row.
	retired bool
}

// newConsumer fills in the defaults and returns every rule that c breaks.
func newConsumer(c *ConsumerConfig) (*Consumer, []error) {
	full := c.withDefaults()
	if faults := full.faults(); len(faults) > 0 {
		return nil, faults
	}
	out := &Consumer{
		Policy: claim.Policy{
			Hold: full.Hold, AttemptsMax: full.AttemptsMax, Window: full.Window, Retention: full.Retention,
			HoldMax: full.HoldMax, ResultBytesMax: int32(full.ResultBytesMax), //nolint:gosec // bounded by faults
		},
		LeaseDefault: full.LeaseDefault, LeaseMax: full.LeaseMax,
		OnUnavailable: full.OnUnavailable, DigestRequired: full.DigestRequired,
		AcceptNoCommonScheme: full.AcceptNoCommonScheme,
		History:              claim.History{Retention: full.Retention},
		Skew:                 claim.Skew(full.Window, full.Retention),
	}
	out.History.Raises = slices.Clone(full.Raises)
	if !full.RetentionRaisedAt.IsZero() {
		out.History.Raises = append(out.History.Raises,
			claim.Raise{At: claim.FromTime(full.RetentionRaisedAt), From: full.RetentionRaisedFrom})
	}
	out.Version = out.version()
	return out, nil
}

func (c *ConsumerConfig) withDefaults() ConsumerConfig {
	full := *c
	full.Window = orDefault(full.Window, claim.WindowDefault)
	full.Retention = orDefault(full.Retention, retentionPerWindow*full.Window)
	full.LeaseMax = orDefault(full.LeaseMax, claim.LeaseMax)
	full.LeaseDefault = orDefault(full.LeaseDefault, min(claim.LeaseDefault, full.LeaseMax))
	full.HoldMax = orDefault(full.HoldMax, claim.HoldMaxDefault)
	if full.ResultBytesMax == 0 {
		full.ResultBytesMax = claim.ResultBytesDefault
	}
	return full
}

func orDefault(d, fallback time.Duration) time.Duration {
	if d == 0 {
		return fallback
	}
	return d
}

func (c *ConsumerConfig) faults() []error {
	var faults []error
	refuse := func(broken bool, format string, args ...any) {
		if broken {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	refuse(c.Window < claim.WindowMin || c.Window > claim.WindowMax,
		"redelivery window %v is not within %v-%v", c.Window, claim.WindowMin, claim.WindowMax)
	refuse(c.Retention < c.Window, "retention %v is shorter than the redelivery window %v", c.Retention, c.Window)
	refuse(c.LeaseMax < claim.LeaseMin || c.LeaseMax > claim.LeaseMax,
		"longest lease %v is not within %v-%v", c.LeaseMax, claim.LeaseMin, claim.LeaseMax)
	refuse(c.LeaseDefault < claim.LeaseMin || c.LeaseDefault > c.LeaseMax,
		"default lease %v is not within %v-%v", c.LeaseDefault, claim.LeaseMin, c.LeaseMax)
	refuse(c.HoldMax < c.LeaseMax, "maximum hold %v is shorter than the longest lease %v", c.HoldMax, c.LeaseMax)
	refuse(c.ResultBytesMax < 0 || c.ResultBytesMax > claim.ResultBytesMax,
		"result limit %d is not within 0-%d bytes", c.ResultBytesMax, claim.ResultBytesMax)
	refuse(c.OnUnavailable > FailOpen, "failure policy %d is unknown", c.OnUnavailable)
	refuse(c.Hold && c.OnUnavailable == FailOpen && !c.AcceptHoldFailOpen,
		"HOLD and FAIL_OPEN contradict each other; set AcceptHoldFailOpen to have both all the same")
	refuse(c.RetentionRaisedAt.IsZero() != (c.RetentionRaisedFrom == 0),
		"when retention was raised and from what belong together")
	refuse(c.RetentionRaisedFrom < 0 || c.RetentionRaisedFrom > c.Retention,
		"retention was raised from %v, which is not within 0-%v", c.RetentionRaisedFrom, c.Retention)
	for _, r := range c.Raises {
		// From may be above Retention: it may have been lowered since.
		refuse(r.At <= 0 || r.From < 0, "retention was raised from %v at %d µs, which is no raise", r.From, r.At)
	}
	return faults
}

// version is a short hash over everything a client could notice.
func (c *Consumer) version() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%+v %v %v %v %v %v %+v",
		c.Policy, c.LeaseDefault, c.LeaseMax, c.OnUnavailable, c.DigestRequired, c.AcceptNoCommonScheme, c.History))
	return hex.EncodeToString(sum[:8])
}
