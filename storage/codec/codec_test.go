package codec

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warifu/warifu/storage/claim"
)

func sets() (many []claim.Digest, pairs []claim.Pair) {
	for i := range claim.DigestsMax {
		many = append(many, claim.Digest{Scheme: strings.Repeat("s", i+1), Value: bytes.Repeat([]byte{byte(i)}, i*9)})
	}
	many[0].Value = nil
	for i := range claim.MetadataMax {
		pairs = append(pairs, claim.Pair{Name: strings.Repeat("n", i+1), Value: strings.Repeat("é", i*70)})
	}
	return many, pairs
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	many, pairs := sets()
	for _, ds := range [][]claim.Digest{nil, many[:1], many} {
		for _, ps := range [][]claim.Pair{nil, pairs[:1], pairs} {
			b := AppendMetadata(AppendDigests(nil, ds), ps)
			r := NewReader(b)
			if d := cmp.Diff(ds, r.Digests()); d != "" {
				t.Error(d)
			}
			if d := cmp.Diff(ps, r.Metadata()); d != "" {
				t.Error(d)
			}
			if !r.Done() {
				t.Errorf("%d digests and %d pairs are not read to the end", len(ds), len(ps))
			}
		}
	}
}

// TestBytesOnDisk holds the form still.
func TestBytesOnDisk(t *testing.T) {
	t.Parallel()
	got := AppendMetadata(AppendDigests(nil, []claim.Digest{{Scheme: "s", Value: []byte{9}}}), []claim.Pair{{Name: "n", Value: ""}})
	if want := []byte{1, 1, 's', 1, 9, 1, 1, 'n', 0}; !bytes.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestCutOff: whatever is missing at the end is noticed, and nothing panics.
func TestCutOff(t *testing.T) {
	t.Parallel()
	many, pairs := sets()
	whole := AppendMetadata(AppendDigests(nil, many), pairs)
	for n := range whole {
		r := NewReader(whole[:n])
		r.Digests()
		r.Metadata()
		if r.Done() {
			t.Fatalf("%d of %d bytes are read as whole", n, len(whole))
		}
	}
	r := NewReader(append(whole, 0))
	r.Digests()
	r.Metadata()
	if r.Done() {
		t.Error("a byte too many is not noticed")
	}
}

func TestTooMany(t *testing.T) {
	t.Parallel()
	r := NewReader(append([]byte{claim.DigestsMax + 1}, make([]byte, 64)...))
	if ds := r.Digests(); ds != nil || r.Done() {
		t.Errorf("%d digests were read", len(ds))
	}
	r = NewReader([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 2})
	if b := r.Bytes(); b != nil || r.Done() {
		t.Errorf("read %v", b)
	}
}
