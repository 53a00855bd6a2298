package tenant

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"time"
)

// Key is a credential as it is stored: the secret itself is not.
type Key struct {
	// ID finds the key: 1-64 characters of [A-Za-z0-9.-], unique over all tenants.
	ID string
	// SecretSHA256 is the SHA-256 of the secret's text. The secret has 256
	// random bits, so no slow hash is needed.
	SecretSHA256 [sha256.Size]byte
	// Scopes is what the key may do; ScopeDefault when 0. ScopeAdminPlatform is
	// not for keys of tenants.
	Scopes Scope
	// Revoked keys are refused, in the same words as unknown ones.
	Revoked bool
	// ExpiresAt is the instant from which the key is refused; zero: never.
	ExpiresAt time.Time
}

// A key reads wf_<environment>_<key ID>_<secret>_<checksum>. Scanners find it
// by its prefix, and the checksum refuses typing errors without a look-up.
const (
	keyPrefix   = "wf_"
	envCharsMax = 16
	idBytes     = 10 // 16 characters
	secretBytes = 32 // 52 characters
	secretChars = 52
	crcChars    = 8
)

var keyText = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// NewKey makes a credential: the text to hand out, once, and what to keep. env
// is 1-16 characters of [a-z0-9] that tell people where the key belongs
// ("dev", "live"); anything else becomes "key".
func NewKey(env string) (plaintext string, key Key) {
	if !ValidEnv(env) {
		env = "key"
	}
	var id [idBytes]byte
	var secret [secretBytes]byte
	// crypto/rand never fails: it ends the process instead.
	_, _ = rand.Read(id[:])
	_, _ = rand.Read(secret[:])
	text := keyText.EncodeToString(secret[:])
	key = Key{ID: keyText.EncodeToString(id[:]), SecretSHA256: sha256.Sum256([]byte(text))}
	body := keyPrefix + env + "_" + key.ID + "_" + text
	return body + "_" + checksum(body), key
}

// ParseKey takes a credential apart. It is false for anything whose form or
// checksum is wrong; it says nothing about whether such a key exists. It does
// not allocate.
func ParseKey(s string) (id, secret string, ok bool) {
	rest, found := strings.CutPrefix(s, keyPrefix)
	if !found || len(s) > len(keyPrefix)+envCharsMax+NameCharsMax+secretChars+crcChars+3 {
		return "", "", false
	}
	env, rest, found1 := strings.Cut(rest, "_")
	id, rest, found2 := strings.Cut(rest, "_")
	secret, sum, found3 := strings.Cut(rest, "_")
	if !found1 || !found2 || !found3 || !ValidEnv(env) || !validKeyID(id) || !validSecret(secret) {
		return "", "", false
	}
	if !checksumIs(s[:len(s)-len(sum)-1], sum) {
		return "", "", false
	}
	return id, secret, true
}

func (k *Key) faults() []error {
	var faults []error
	if !validKeyID(k.ID) {
		faults = append(faults, fmt.Errorf("key ID is not 1-%d characters of [A-Za-z0-9.-]", NameCharsMax))
	}
	if k.SecretSHA256 == [sha256.Size]byte{} {
		faults = append(faults, errors.New("the SHA-256 of the secret is missing"))
	}
	if k.Scopes&^scopesKnown != 0 {
		faults = append(faults, fmt.Errorf("scopes %#x are unknown", k.Scopes&^scopesKnown))
	}
	if k.Scopes.Has(ScopeAdminPlatform) {
		faults = append(faults, errPlatformScope)
	}
	return faults
}

// errPlatformScope: whoever acts for one tenant does not rule over the others.
var errPlatformScope = errors.New("the scope admin:platform is not for keys of tenants")

func checksum(body string) string { return fmt.Sprintf("%08x", crc(body)) }

// crc is crc32.ChecksumIEEE of a string, without the copy to the heap that the
// conversion to bytes would cost every request.
func crc(s string) uint32 {
	sum := ^uint32(0)
	for i := range len(s) {
		sum = crc32.IEEETable[sum&0xff^uint32(s[i])] ^ sum>>8
	}
	return ^sum
}

// checksumIs compares without allocating.
func checksumIs(body, sum string) bool {
	if len(sum) != crcChars {
		return false
	}
	const digits = "0123456789abcdef"
	for i, rest := crcChars-1, crc(body); i >= 0; i, rest = i-1, rest>>4 {
		if sum[i] != digits[rest&0xf] {
			return false
		}
	}
	return true
}

// ValidEnv reports whether s is 1-16 characters of [a-z0-9].
func ValidEnv(s string) bool {
	if s == "" || len(s) > envCharsMax {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// validKeyID: a name without the character that separates the parts of a key.
func validKeyID(s string) bool { return ValidName(s) && !strings.Contains(s, "_") }

func validSecret(s string) bool {
	if len(s) != secretChars {
		return false
	}
	for i := range len(s) {
		if !nameChar(s[i]) {
			return false
		}
	}
	return true
}
