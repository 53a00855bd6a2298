package codec

import (
	"encoding/binary"

	"github.com/warifu/warifu/storage/claim"
)

// RecordBytesFixed is what a record is taken to need beside what differs from
// record to record: its instants, policy, attempt and checksum, and its place in
// the expiry index. What an engine really needs, with its versions, padding and
// compression, is more or less than that: this is the unit of quotas and usage,
// the same in every store.
const RecordBytesFixed = 200

// RecordBytes is the size of a record in the unit of quotas and usage: a fixed
// part, the key, the digests and the result. bodyBytes is the size of the
// result's body as it is stored, which r does not have to have.
func RecordBytes(r *claim.Record, bodyBytes int64) int64 {
	n := RecordBytesFixed + bodyBytes + int64(len(r.Key.Consumer)+len(r.Key.EventID))
	n += digestsBytes(r.Digests)
	if r.Completion != nil {
		n += int64(len(r.Completion.ContentType)) + metadataBytes(r.Completion.Metadata)
	}
	return n
}

// digestsBytes is the length of what AppendDigests appends, and 0 without digests:
// not every store keeps that there are none.
func digestsBytes(ds []claim.Digest) int64 {
	if len(ds) == 0 {
		return 0
	}
	n := uvarintBytes(len(ds))
	for i := range ds {
		n += textBytes(len(ds[i].Scheme)) + textBytes(len(ds[i].Value))
	}
	return n
}

// metadataBytes is the length of what AppendMetadata appends.
func metadataBytes(ps []claim.Pair) int64 {
	n := uvarintBytes(len(ps))
	for i := range ps {
		n += textBytes(len(ps[i].Name)) + textBytes(len(ps[i].Value))
	}
	return n
}

// textBytes is the length of what AppendBytes appends for n bytes.
func textBytes(n int) int64 { return uvarintBytes(n) + int64(n) }

func uvarintBytes(n int) int64 {
	var buf [binary.MaxVarintLen64]byte
	return int64(binary.PutUvarint(buf[:], uint64(n)))
}
