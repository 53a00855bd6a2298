package registry

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/warifu/warifu/storage/claim"
)

// ID is 16 random bytes: of a change, a finding, a job.
type ID [16]byte

// String is 32 hexadecimal digits.
func (i ID) String() string { return hex.EncodeToString(i[:]) }

// MarshalText implements encoding.TextMarshaler.
func (i ID) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (i *ID) UnmarshalText(text []byte) error { return fromHex(i[:], text) }

// Hash is a SHA-256.
type Hash [32]byte

// MarshalText implements encoding.TextMarshaler.
func (h Hash) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(h[:])), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (h *Hash) UnmarshalText(text []byte) error { return fromHex(h[:], text) }

func fromHex(dst, text []byte) error {
	if hex.DecodedLen(len(text)) != len(dst) {
		return fmt.Errorf("%d hexadecimal digits instead of %d", len(text), 2*len(dst))
	}
	_, err := hex.Decode(dst, text)
	return err
}

// Head is what the store keeps of every row. It is set by the store; a caller
// hands Version and Unknown back as they were read.
type Head struct {
	Version  int64      `json:"-"` // +1 with every write, from 1
	Revision Revision   `json:"-"` // of the last write
	Change   ID         `json:"-"` // that made the last write
	Created  claim.Time `json:"-"`
	Updated  claim.Time `json:"-"`
	// Deleted rows are tombstones; they have their identity and nothing else.
	Deleted bool `json:"-"`
	// Unknown are the fields that another version of the program has written.
	Unknown map[string]json.RawMessage `json:"-"`
}

// TenantState is where a tenant is in its life.
type TenantState uint8

// The states of a tenant. What is Deleting never comes back, and what is
// Deleted has given its name free.
const (
	TenantActive TenantState = iota + 1
	TenantSuspended
	TenantDeleting
	TenantDeleted
)

// Tenant is one team's part of an installation.
type Tenant struct {
	Head
	ID    claim.TenantID `json:"id"`
	Name  string         `json:"name"` // unique among tenants that are not deleted
	State TenantState    `json:"state"`
	// StrictConsumers: claims of consumers that were not declared are refused.
	StrictConsumers bool `json:"strict_consumers,omitempty"`
	Limits
	Note string `json:"note,omitempty"`
	// DataKeys seal the results of consumers that have none of their own.
	DataKeys []DataKey `json:"data_keys,omitempty"`
}

// DataKey is a key that results are sealed with. Of several the last that was
// not shredded seals; all open. One that was shredded stays as a tombstone, so
// that the results under it are known to be gone and not only out of reach.
type DataKey struct {
	ID uint32 `json:"id"` // unique in its row, and never 0
	// Wrapped is the key, encrypted with the key-encryption key named KEK. Empty:
	// it was shredded. It has no place in an audit entry: see Audited.
	Wrapped  []byte     `json:"wrapped_key,omitempty"`
	KEK      string     `json:"kek,omitempty"`
	Created  claim.Time `json:"created_us"`
	Shredded claim.Time `json:"shredded_us,omitempty"` // 0: it was not
}

// Audited returns the tenant as audit entries may show it: without wrapped keys.
func (t *Tenant) Audited() Tenant {
	c := *t
	c.DataKeys = AuditedKeys(t.DataKeys)
	return c
}

// Audited returns the consumer as audit entries may show it: without wrapped
// keys.
func (c *Consumer) Audited() Consumer {
	d := *c
	d.DataKeys = AuditedKeys(c.DataKeys)
	return d
}

// AuditedKeys returns copies of keys without what is wrapped. The audit log is
// kept for good, and what stands there could not be shredded.
func AuditedKeys(keys []DataKey) []DataKey {
	if keys == nil {
		return nil
	}
	shown := make([]DataKey, len(keys))
	for i, k := range keys {
		k.Wrapped = nil
		shown[i] = k
	}
	return shown
}

// Limits are a tenant's quotas; 0 is the installation's default.
type Limits struct {
	RequestsPerSecond int64 `json:"requests_per_second,omitempty"`
	ItemsPerSecond    int64 `json:"items_per_second,omitempty"`
	LiveLeasesMax     int64 `json:"live_leases_max,omitempty"`
	KeysMax           int64 `json:"keys_max,omitempty"`  // retained keys
	BytesMax          int64 `json:"bytes_max,omitempty"` // stored bytes
	InDoubtMax        int64 `json:"in_doubt_max,omitempty"`
}

// OnUnavailable says what a claim means while the store cannot be asked.
type OnUnavailable uint8

// The failure policies.
const (
	FailClosed OnUnavailable = iota
	FailOpen
)

// Consumer is the policy of one consumer. Zero values are the defaults of
// whoever reads it; the store gives none.
type Consumer struct {
	Head
	Tenant claim.TenantID `json:"tenant"`
	Name   string         `json:"name"`

	Hold           bool          `json:"hold,omitempty"`
	AttemptsMax    uint32        `json:"attempts_max,omitempty"`
	Window         time.Duration `json:"window_ns,omitempty"`
	Retention      time.Duration `json:"retention_ns,omitempty"`
	HoldMax        time.Duration `json:"hold_max_ns,omitempty"`
	ResultBytesMax int32         `json:"result_bytes_max,omitempty"`
	// Sliding: every duplicate extends what is left of the retention.
	Sliding bool `json:"sliding,omitempty"`
	// Raises are all changes of Retention to a larger one, oldest first: what
	// was forgotten before is not known again.
	Raises []Raise `json:"raises,omitempty"`

	LeaseDefault time.Duration `json:"lease_default_ns,omitempty"`
	LeaseMax     time.Duration `json:"lease_max_ns,omitempty"`

	OnUnavailable OnUnavailable `json:"on_unavailable,omitempty"`
	// AcceptHoldFailOpen accepts Hold together with FailOpen, by name.
	AcceptHoldFailOpen bool `json:"accept_hold_fail_open,omitempty"`

	DigestRequired       bool `json:"digest_required,omitempty"`
	AcceptNoCommonScheme bool `json:"accept_no_common_scheme,omitempty"`

	// Retired: its declaration was taken back. The row stays, because it knows for
	// how long keys were remembered and which results were shredded.
	Retired bool `json:"retired,omitempty"`

	Note string `json:"note,omitempty"`
	// DataKeys seal the consumer's results. A tombstone with the ID of one of the
	// tenant's keys says that what this consumer has under that key was shredded.
	DataKeys []DataKey `json:"data_keys,omitempty"`
}

// Raise says when retention was raised, and from what.
type Raise struct {
	At   claim.Time    `json:"at_us"`
	From time.Duration `json:"from_ns"`
}

// Policy is what records keep of the consumer.
func (c *Consumer) Policy() claim.Policy {
	return claim.Policy{
		Hold: c.Hold, AttemptsMax: c.AttemptsMax, Window: c.Window, Retention: c.Retention,
		HoldMax: c.HoldMax, ResultBytesMax: c.ResultBytesMax,
	}
}

// Key is an API key; its secret is not stored.
type Key struct {
	Head
	ID     string         `json:"id"`     // unique over all tenants
	Tenant claim.TenantID `json:"tenant"` // 0: of the platform
	Secret Hash           `json:"secret"`
	Scopes []string       `json:"scopes,omitempty"`
	// ConsumerPrefix limits the key to consumers whose names begin with it.
	ConsumerPrefix string     `json:"consumer_prefix,omitempty"`
	Expires        claim.Time `json:"expires_us,omitempty"` // 0: never
	Revoked        claim.Time `json:"revoked_us,omitempty"` // 0: it is not
	Note           string     `json:"note,omitempty"`
}

// AuditEntry says who did what. Change, N, Revision and At are set by the store.
type AuditEntry struct {
	Change   ID         `json:"-"`
	N        int        `json:"-"` // its place in the Change
	Revision Revision   `json:"-"`
	At       claim.Time `json:"-"`

	Tenant    claim.TenantID  `json:"tenant,omitempty"` // whose log it is in; 0: the platform's
	Actor     string          `json:"actor"`            // a key ID, or a part of the system
	Action    string          `json:"action"`
	Target    string          `json:"target,omitempty"`
	Reason    string          `json:"reason,omitempty"`
	RequestID string          `json:"request_id,omitempty"`
	Before    json.RawMessage `json:"before,omitempty"`
	After     json.RawMessage `json:"after,omitempty"`
}

// FindingState is how far somebody is with a finding.
type FindingState uint8

// The states of a finding.
const (
	FindingOpen FindingState = iota + 1
	FindingAssigned
	FindingResolved
)

// Finding is something that people should look at. Whoever may raise one twice
// derives its ID from the cause: the second is a conflict.
type Finding struct {
	Head
	ID       ID              `json:"id"`
	Tenant   claim.TenantID  `json:"tenant,omitempty"` // 0: the platform's
	Kind     string          `json:"kind"`
	State    FindingState    `json:"state"`
	Consumer string          `json:"consumer,omitempty"` // of the claim it is about,
	EventID  string          `json:"event_id,omitempty"` // with this
	Assignee string          `json:"assignee,omitempty"`
	Details  json.RawMessage `json:"details,omitempty"`
}

// JobState is how far a job is.
type JobState uint8

// The states of a job.
const (
	JobPending JobState = iota + 1
	JobRunning
	JobDone
	JobFailed
	JobCancelled
)

// Job is administrative work that goes on where it stopped.
type Job struct {
	Head
	ID     ID              `json:"id"`
	Tenant claim.TenantID  `json:"tenant,omitempty"` // 0: the platform's
	Kind   string          `json:"kind"`
	State  JobState        `json:"state"`
	Params json.RawMessage `json:"params,omitempty"`
	Cursor []byte          `json:"cursor,omitempty"`
	Done   int64           `json:"done,omitempty"` // of Total, in units of the kind
	Total  int64           `json:"total,omitempty"`
	Error  string          `json:"error,omitempty"`
}

// Lease is the right to do some background work. Two that do it are wasteful
// and never wrong: what they write is guarded.
type Lease struct {
	Name   string
	Owner  string // "": nobody's
	Fence  claim.Fence
	Until  claim.Time // half open
	Cursor []byte
}

// Leases are all leases.
type Leases struct {
	Now    claim.Time
	Leases []Lease
}
