package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/warifu/warifu/storage/claim"
)

// Entry is one claim that was answered UNPROTECTED.
type Entry struct {
	// Time is when it was answered; Append stamps it when 0.
	Time claim.Time
	// Key is the event; its tenant is the credential's.
	Key claim.Key
	// Attempt is the one that may have run. Reconciling needs it: where a client
	// sent none, it is the one the server made and answered.
	Attempt claim.AttemptID
	// Digests are those of the request.
	Digests []claim.Digest
	// KeyID names the API key, RequestID the call: for whoever asks who it was.
	KeyID     string
	RequestID string
}

// The limits of an append; those of events are the contract's.
const (
	EntriesMax        = claim.BatchItemsMax
	KeyIDBytesMax     = 64
	RequestIDBytesMax = 64

	schemeBytesMax = claim.SchemeCharsMax * utf8.UTFMax
	// entryBytesMax bounds an encoded entry; lengths and numbers take at most ten bytes.
	entryBytesMax = 10*8 + len(claim.AttemptID{}) + claim.ConsumerCharsMax + claim.EventIDBytesMax +
		claim.DigestsMax*(20+schemeBytesMax+claim.DigestBytesMax) + KeyIDBytesMax + RequestIDBytesMax
	bodyBytesMax = EntriesMax * entryBytesMax
)

// validate: an entry that breaks a limit could not be read back.
func (e *Entry) validate() error {
	var faults []error
	between := func(field string, got, least, most int) {
		if got < least || got > most {
			faults = append(faults, fmt.Errorf("%w: %s has length %d, not within %d-%d", ErrInvalid, field, got, least, most))
		}
	}
	between("Key.Consumer", len(e.Key.Consumer), 1, claim.ConsumerCharsMax)
	between("Key.EventID", len(e.Key.EventID), 1, claim.EventIDBytesMax)
	between("Digests", len(e.Digests), 0, claim.DigestsMax)
	between("KeyID", len(e.KeyID), 0, KeyIDBytesMax)
	between("RequestID", len(e.RequestID), 0, RequestIDBytesMax)
	for i := range e.Digests {
		between("Digests.Scheme", len(e.Digests[i].Scheme), 1, schemeBytesMax)
		between("Digests.Value", len(e.Digests[i].Value), 0, claim.DigestBytesMax)
	}
	if e.Attempt.IsZero() {
		faults = append(faults, fmt.Errorf("%w: Attempt is missing", ErrInvalid))
	}
	return errors.Join(faults...)
}

// appendEntry encodes e, stamped with now where it has no time.
func appendEntry(b []byte, e *Entry, now claim.Time) []byte {
	at := e.Time
	if at == 0 {
		at = now
	}
	b = binary.AppendVarint(b, int64(at))
	b = binary.AppendVarint(b, int64(e.Key.Tenant))
	b = appendText(b, e.Key.Consumer)
	b = appendText(b, e.Key.EventID)
	b = append(b, e.Attempt[:]...)
	b = binary.AppendUvarint(b, uint64(len(e.Digests)))
	for i := range e.Digests {
		b = appendText(b, e.Digests[i].Scheme)
		b = appendText(b, string(e.Digests[i].Value))
	}
	b = appendText(b, e.KeyID)
	return appendText(b, e.RequestID)
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// decoder reads what appendEntry wrote. After its first fault it returns zero
// values only.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) entry() (e Entry) {
	e.Time = claim.Time(d.number())
	e.Key.Tenant = claim.TenantID(d.number())
	e.Key.Consumer = string(d.text(claim.ConsumerCharsMax))
	e.Key.EventID = string(d.text(claim.EventIDBytesMax))
	copy(e.Attempt[:], d.take(len(e.Attempt)))
	if n := d.length(claim.DigestsMax); n > 0 {
		e.Digests = make([]claim.Digest, n)
	}
	for i := range e.Digests {
		e.Digests[i].Scheme = string(d.text(schemeBytesMax))
		e.Digests[i].Value = append([]byte{}, d.text(claim.DigestBytesMax)...)
	}
	e.KeyID = string(d.text(KeyIDBytesMax))
	e.RequestID = string(d.text(RequestIDBytesMax))
	return e
}

func (d *decoder) number() int64 {
	n, size := binary.Varint(d.b)
	if size <= 0 {
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[size:]
	return n
}

func (d *decoder) length(most int) int {
	n, size := binary.Uvarint(d.b)
	if size <= 0 || n > math.MaxInt32 || int(n) > most {
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[size:]
	return int(n)
}

func (d *decoder) text(most int) []byte { return d.take(d.length(most)) }

func (d *decoder) take(n int) []byte {
	if n > len(d.b) {
		d.bad, d.b = true, nil
		return nil
	}
	out := d.b[:n]
	d.b = d.b[n:]
	return out
}
