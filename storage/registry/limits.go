package registry

import (
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/warifu/warifu/storage/claim"
)

// The limits of the contract.
const (
	NameCharsMax    = 128 // of [A-Za-z0-9._/-]
	KindCharsMax    = 64
	TextBytesMax    = 1024     // actor, action, target, note and the like
	DocumentMax     = 32 << 10 // bytes of one row, or of one audit entry
	ChangeRowsMax   = 200
	ChangeAuditMax  = 200
	ChangeBytesMax  = 1 << 20
	RaisesMax       = 32
	ScopesMax       = 16
	PageMax         = 500
	LeasesMax       = 1000
	LeaseCursorMax  = 4 << 10
	LeaseMin        = time.Second
	LeaseMax        = 24 * time.Hour
	SeenMax         = 1000
	SeenGrain       = time.Minute
	TenantIDMax     = 1<<53 - 1 // exact in JSON
	eventIDBytesMax = claim.EventIDBytesMax
)

func invalid(field, format string, args ...any) error {
	return &InvalidError{Field: field, Rule: fmt.Sprintf(format, args...)}
}

// checkName refuses what is not 1–128 characters of [A-Za-z0-9._/-].
func checkName(field, name string) error {
	if name == "" || len(name) > NameCharsMax {
		return invalid(field, "has %d characters; it has 1–%d", len(name), NameCharsMax)
	}
	return checkChars(field, name)
}

func checkChars(field, name string) error {
	for i := range len(name) {
		c := name[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '/' || c == '-' {
			continue
		}
		return invalid(field, "has the character %q; it is of A–Z, a–z, 0–9, ., _, / and -", c)
	}
	return nil
}

func checkText(field, text string, bytesMax int) error {
	if len(text) > bytesMax {
		return invalid(field, "has %d bytes; at most %d", len(text), bytesMax)
	}
	if !utf8.ValidString(text) {
		return invalid(field, "is not UTF-8")
	}
	return nil
}

func checkKind(field, kind string) error {
	if len(kind) > KindCharsMax {
		return invalid(field, "has %d characters; at most %d", len(kind), KindCharsMax)
	}
	return checkName(field, kind)
}

func checkJSON(field string, doc json.RawMessage) error {
	if doc != nil && !json.Valid(doc) {
		return invalid(field, "is not JSON")
	}
	return nil
}

func checkTenant(field string, id, least claim.TenantID) error {
	if id < least || id > TenantIDMax {
		return invalid(field, "is %d; it is %d–%d", id, least, int64(TenantIDMax))
	}
	return nil
}

// CheckLease refuses what no store takes.
func CheckLease(name, owner string, ttl time.Duration) error {
	if ttl < LeaseMin || ttl > LeaseMax {
		return invalid("lease.ttl", "is %v; it is %v–%v", ttl, LeaseMin, LeaseMax)
	}
	return first(checkName("lease.name", name), checkName("lease.owner", owner))
}

// CheckLeaseName refuses what is no name of a lease.
func CheckLeaseName(name string) error { return checkName("lease.name", name) }

// CheckCursor refuses what no store takes.
func CheckCursor(name string, cursor []byte) error {
	if len(cursor) > LeaseCursorMax {
		return invalid("lease.cursor", "has %d bytes; at most %d", len(cursor), LeaseCursorMax)
	}
	return CheckLeaseName(name)
}

// IsKeyID reports whether a key can have this ID. Whoever asks about others is
// told that they were never used.
func IsKeyID(id string) bool { return checkName("key.id", id) == nil }

// CheckSeen refuses more keys than one call takes.
func CheckSeen(n int) error {
	if n > SeenMax {
		return invalid("keys", "are %d; at most %d", n, SeenMax)
	}
	return nil
}

// first returns the first error.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
