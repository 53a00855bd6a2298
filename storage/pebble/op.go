package pebble

import "encoding/binary"

// A commit is a run of operations. They are kept in this form in the log and in
// memory, and only a flush turns them into the engine's own.
const (
	opBody        = 1 + iota // put a body
	opRecord                 // put a record
	opRecordDue              // put a record whose expiry is new to the expiry index
	opDelete                 // of one key
	opDeleteRange            // of what the engine has, from key to value; never of what is in memory
)

const (
	opHeaderLen = 7 // kind, length of key (2), length of value (4)
	opBucketLen = 8 // records have the bucket of their expiry after that
)

func hasBucket(kind byte) bool { return kind == opRecord || kind == opRecordDue }

// op is one operation. Its slices point into what it was parsed from.
type op struct {
	kind   byte
	bucket int64
	key    []byte
	value  []byte
	size   int
}

// beginOp appends an operation up to its value, which the caller appends.
func beginOp(dst []byte, kind byte, bucket int64, key []byte) []byte {
	dst = append(dst, kind)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(key)))
	dst = append(dst, 0, 0, 0, 0)
	if hasBucket(kind) {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(bucket))
	}
	return append(dst, key...)
}

// endOp notes the length of the value of the operation that begins at start.
func endOp(dst []byte, start int) {
	head := opHeaderLen + int(binary.LittleEndian.Uint16(dst[start+1:]))
	if hasBucket(dst[start]) {
		head += opBucketLen
	}
	binary.LittleEndian.PutUint32(dst[start+3:], uint32(len(dst)-start-head))
}

// parseOp reads the operation at the start of b, or reports that there is none.
func parseOp(b []byte) (o op, ok bool) {
	if len(b) < opHeaderLen {
		return op{}, false
	}
	o.kind = b[0]
	at := opHeaderLen
	if hasBucket(o.kind) {
		if len(b) < opHeaderLen+opBucketLen {
			return op{}, false
		}
		o.bucket = int64(binary.LittleEndian.Uint64(b[at:]))
		at += opBucketLen
	}
	if o.kind < opBody || o.kind > opDeleteRange {
		return op{}, false
	}
	klen, vlen := int(binary.LittleEndian.Uint16(b[1:])), int(binary.LittleEndian.Uint32(b[3:]))
	if klen+vlen > len(b)-at {
		return op{}, false
	}
	o.key, o.value = b[at:at+klen:at+klen], b[at+klen:at+klen+vlen:at+klen+vlen]
	o.size = at + klen + vlen
	return o, true
}
