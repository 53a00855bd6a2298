package claim

import "bytes"

// Digest is a fingerprint of an event's content under a named scheme.
type Digest struct {
	Scheme string
	Value  []byte
}

// Agreement is what comparing two digest sets says.
type Agreement uint8

// The results of a comparison.
const (
	Agree    Agreement = iota // at least one common scheme, all equal; or neither side has any
	Differ                    // a common scheme differs
	NoCommon                  // no common scheme: the consumer's policy decides
)

// Compare compares digest sets scheme by scheme. A difference in any common
// scheme is a difference.
func Compare(stored, given []Digest) Agreement {
	if len(stored) == 0 && len(given) == 0 {
		return Agree
	}
	common := false
	for i := range given {
		for j := range stored {
			if stored[j].Scheme != given[i].Scheme {
				continue
			}
			if !bytes.Equal(stored[j].Value, given[i].Value) {
				return Differ
			}
			common = true
		}
	}
	if common {
		return Agree
	}
	return NoCommon
}

// union returns stored plus the schemes only given has, at most DigestsMax. It
// is used where a common scheme agreed, so that a content schema can be
// migrated by sending both schemes for one retention.
func union(stored, given []Digest) []Digest {
	out := stored
	for i := range given {
		if !hasScheme(stored, given[i].Scheme) && len(out) < DigestsMax {
			out = append(out[:len(out):len(out)], given[i])
		}
	}
	return out
}

func hasScheme(ds []Digest, scheme string) bool {
	for i := range ds {
		if ds[i].Scheme == scheme {
			return true
		}
	}
	return false
}
