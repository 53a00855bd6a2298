package codec

import (
	"testing"

	"github.com/warifu/warifu/storage/claim"
)

// TestRecordBytes: sizes are those of what the Append functions write, which is
// what a store can measure without decoding; none of it is there for what a
// record does not have.
func TestRecordBytes(t *testing.T) {
	t.Parallel()
	many, pairs := sets()
	k := claim.Key{Tenant: 1 << 40, Consumer: "cons", EventID: "évent"}
	base := int64(RecordBytesFixed + 4 + 6)
	for name, c := range map[string]struct {
		rec  claim.Record
		body int64
		want int64
	}{
		"bare":             {claim.Record{Key: k}, 0, base},
		"one digest":       {claim.Record{Key: k, Digests: many[:1]}, 0, base + int64(len(AppendDigests(nil, many[:1])))},
		"all digests":      {claim.Record{Key: k, Digests: many}, 0, base + int64(len(AppendDigests(nil, many)))},
		"empty completion": {claim.Record{Key: k, Completion: &claim.Completion{}}, 0, base + int64(len(AppendMetadata(nil, nil)))},
		"completion": {
			claim.Record{Key: k, Completion: &claim.Completion{ContentType: "text/plain", Metadata: pairs, Body: []byte("is not asked")}},
			1 << 20, base + 10 + int64(len(AppendMetadata(nil, pairs))) + 1<<20,
		},
	} {
		if got := RecordBytes(&c.rec, c.body); got != c.want {
			t.Errorf("%s: %d bytes, want %d", name, got, c.want)
		}
	}
}
