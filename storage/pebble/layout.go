package pebble

import (
	"encoding/binary"
	"errors"

	"github.com/warifu/warifu/storage/claim"
)

// Every key begins with one byte that says what it is.
const (
	adminPrefix  = 'a' // → the registry; see registry_keys.go
	recordPrefix = 'r' // tenant, consumer, 0, event ID → record
	bodyPrefix   = 'b' // as the record's → a result body too large to be stored inline
	indexPrefix  = 'x' // bucket of expiry, sequence, part → record keys
	metaPrefix   = 'm' // → how far the engine is, and where the log goes on
)

// inlineBodyMax is the largest result body kept in its record. Larger ones
// have a key of their own, so that scans of records do not read them.
const inlineBodyMax = 4 << 10

var (
	metaKey     = []byte{metaPrefix}
	recordLower = []byte{recordPrefix}
	recordUpper = []byte{recordPrefix + 1}
	indexLower  = []byte{indexPrefix}
)

var errBadKey = errors.New("a stored key is not one of ours")

// appendRecordKey encodes k. Event IDs are stored as they are: they need no
// hash, records of one consumer lie together in the order of their IDs, and a
// prefix of IDs is a range. The consumer cannot contain the zero byte that
// ends it, and the event ID is last, so no two keys collide.
func appendRecordKey(dst []byte, k *claim.Key) []byte {
	dst = append(dst, recordPrefix)
	dst = binary.BigEndian.AppendUint64(dst, uint64(k.Tenant))
	dst = append(dst, k.Consumer...)
	dst = append(dst, 0)
	return append(dst, k.EventID...)
}

// parseRecordKey is the inverse of appendRecordKey.
func parseRecordKey(key []byte) (claim.Key, error) {
	if len(key) < 1+8+1 {
		return claim.Key{}, errBadKey
	}
	rest := key[9:]
	for i, c := range rest {
		if c == 0 {
			return claim.Key{
				Tenant:   claim.TenantID(binary.BigEndian.Uint64(key[1:9])),
				Consumer: string(rest[:i]),
				EventID:  string(rest[i+1:]),
			}, nil
		}
	}
	return claim.Key{}, errBadKey
}

// appendBodyKey returns the key of the body that belongs to a record key.
func appendBodyKey(dst, recordKey []byte) []byte {
	dst = append(dst, bodyPrefix)
	return append(dst, recordKey[1:]...)
}

// bucketWidth is the grain of the expiry index, in microseconds. One entry
// holds many keys that were flushed together with an expiry in the same bucket,
// so that the index costs a flush, and not each claim, one more key.
const bucketWidth = 1_000_000

func bucketOf(expires claim.Time) int64 { return int64(expires) / bucketWidth }

const indexKeyLen = 1 + 8 + 8 + 4

// indexKey is the key of an index entry: its bucket, the last sequence number
// of the memtable it came from, and which part of the bucket's keys it holds.
func indexKey(bucket int64, seq uint64, part uint32) []byte {
	key := make([]byte, 0, indexKeyLen)
	key = append(key, indexPrefix)
	key = binary.BigEndian.AppendUint64(key, uint64(bucket))
	key = binary.BigEndian.AppendUint64(key, seq)
	return binary.BigEndian.AppendUint32(key, part)
}

// indexEntryKeys is how many record keys one index entry holds at most.
const indexEntryKeys = 1000

// appendIndexed appends a record key to the data of an index entry. Keys come
// in sorted order and share long prefixes, so each is stored as what differs
// from the last.
func appendIndexed(data, last, key []byte) []byte {
	shared := commonPrefix(last, key)
	data = binary.AppendUvarint(data, uint64(shared))
	data = binary.AppendUvarint(data, uint64(len(key)-shared))
	return append(data, key[shared:]...)
}

// eachIndexed calls fn with each record key of an index entry's data. The
// slice is reused between calls.
func eachIndexed(data []byte, fn func(key []byte) error) error {
	var key []byte
	for len(data) > 0 {
		shared, n := binary.Uvarint(data)
		if n <= 0 || shared > uint64(len(key)) {
			return errBadKey
		}
		data = data[n:]
		rest, n := binary.Uvarint(data)
		if n <= 0 || rest > uint64(len(data)-n) {
			return errBadKey
		}
		key = append(key[:shared], data[n:n+int(rest)]...)
		data = data[n+int(rest):]
		if err := fn(key); err != nil {
			return err
		}
	}
	return nil
}

func commonPrefix(a, b []byte) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// meta is what a commit says of the store.
type meta struct {
	seq  uint64
	hwm  claim.Time  // the clock never runs behind it again
	ceil claim.Fence // no fence at or above it was ever given out
}

const metaLen = 24

func (m meta) append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, m.seq)
	dst = binary.BigEndian.AppendUint64(dst, uint64(m.hwm))
	return binary.BigEndian.AppendUint64(dst, uint64(m.ceil))
}

func parseMeta(b []byte) (meta, error) {
	if len(b) != metaLen {
		return meta{}, errBadKey
	}
	return meta{
		seq:  binary.BigEndian.Uint64(b),
		hwm:  claim.Time(binary.BigEndian.Uint64(b[8:])),
		ceil: claim.Fence(binary.BigEndian.Uint64(b[16:])),
	}, nil
}
