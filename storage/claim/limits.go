package claim

import "time"

// The limits of the contract. Whoever breaks one is told the field and the
// limit, and nothing is asked of the store.
const (
	EventIDBytesMax   = 512
	ConsumerCharsMax  = 128
	DigestsMax        = 8
	SchemeCharsMax    = 64
	DigestBytesMax    = 64
	ContentTypeMax    = 255
	MetadataMax       = 16
	MetadataBytesMax  = 4 << 10
	ResultBytesMax    = 512 << 10 // hard cap; consumers have 256 KiB by default
	BatchItemsMax     = 500
	BatchBytesMax     = 1 << 20
	ReplyBodyBytesMax = 1 << 20

	LeaseMin  = time.Second
	LeaseMax  = 24 * time.Hour
	WindowMin = time.Second
	WindowMax = 400 * 24 * time.Hour
	WaitMax   = 30 * time.Second

	// SkewMax bounds how far event times may be ahead of the store's clock.
	SkewMax = 5 * time.Minute
	// SweepGrace is how long expired records are kept before they may be
	// deleted: more than tolerated clock error plus the age of a statement.
	SweepGrace = time.Hour
)

// Defaults of a consumer that declares nothing.
const (
	LeaseDefault       = 30 * time.Second
	HoldMaxDefault     = 24 * time.Hour
	WindowDefault      = 24 * time.Hour
	RetentionDefault   = 48 * time.Hour
	ResultBytesDefault = 256 << 10
)

// DefaultPolicy is the policy of a consumer that declares nothing.
func DefaultPolicy() Policy {
	return Policy{
		Window: WindowDefault, Retention: RetentionDefault,
		HoldMax: HoldMaxDefault, ResultBytesMax: ResultBytesDefault,
	}
}
