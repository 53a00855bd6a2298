package sqlstore

import (
	"cmp"
	"slices"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/codec"
	"github.com/warifu/warifu/storage/storetime"
)

const (
	// shards is how many places keys that grow are written in. It is part of
	// the primary key: it never changes.
	shards = 16
	// inlineMax is up to which size a body is part of its record's row.
	inlineMax = 4 << 10
)

// shardOf is part of the primary key: it never changes. FNV-1a over the key,
// folded: sequences differ in their last bytes, which must reach the shard.
func shardOf(k *claim.Key) int16 {
	const offset, prime = 14695981039346656037, 1099511628211
	h := uint64(offset)
	for i := 0; i < 64; i += 8 {
		h = (h ^ uint64(byte(k.Tenant>>i))) * prime
	}
	for i := range len(k.Consumer) {
		h = (h ^ uint64(k.Consumer[i])) * prime
	}
	h *= prime // where the consumer ends
	for i := range len(k.EventID) {
		h = (h ^ uint64(k.EventID[i])) * prime
	}
	h ^= h >> 32
	h ^= h >> 16
	return int16((h ^ h>>8) % shards)
}

// keys are the keys of one trip in the order of the primary key, in which
// every statement locks its rows, as the arrays that its statements take.
type keys struct {
	order   []int // the item at each place
	n       int2s
	shard   int2s
	tenant  int8s
	consume texts
	event   texts
}

// sorted makes the arrays of count keys.
func sorted(count int, key func(int) *claim.Key) *keys {
	k := &keys{order: make([]int, count)}
	byItem := make([]int16, count)
	for i := range count {
		k.order[i], byItem[i] = i, shardOf(key(i))
	}
	slices.SortFunc(k.order, func(a, b int) int {
		x, y := key(a), key(b)
		return cmp.Or(cmp.Compare(byItem[a], byItem[b]), cmp.Compare(x.Tenant, y.Tenant),
			cmp.Compare(x.Consumer, y.Consumer), cmp.Compare(x.EventID, y.EventID))
	})
	k.n, k.shard, k.tenant = make(int2s, count), make(int2s, count), make(int8s, count)
	k.consume, k.event = make(texts, count), make(texts, count)
	for place, i := range k.order {
		id := key(i)
		k.n[place], k.shard[place], k.tenant[place] = int16(place), byItem[i], int64(id.Tenant)
		k.consume[place], k.event[place] = id.Consumer, id.EventID
	}
	return k
}

// only returns the arrays of some places.
func (k *keys) only(places []int) *keys {
	out := &keys{order: k.order}
	for _, p := range places {
		out.n, out.shard, out.tenant = append(out.n, k.n[p]), append(out.shard, k.shard[p]), append(out.tenant, k.tenant[p])
		out.consume, out.event = append(out.consume, k.consume[p]), append(out.event, k.event[p])
	}
	return out
}

// item returns the item that a row's n names.
func (k *keys) item(n int16) (int, error) {
	if n < 0 || int(n) >= len(k.order) {
		return 0, errRow
	}
	return k.order[n], nil
}

// args are the arrays of keys with their places.
func (k *keys) args() []any { return []any{k.n, k.shard, k.tenant, k.consume, k.event} }

// named are the arrays of keys alone.
func (k *keys) named() []any { return []any{k.shard, k.tenant, k.consume, k.event} }

// held are the two arguments that every statement with a clock begins with.
func held(b storetime.Bounds) []any { return []any{instant(b.Low), instant(b.Expected)} }

// instant is NULL for 0 and for Never.
func instant(t claim.Time) pgtype.Timestamptz {
	if t == 0 || t == claim.Never {
		return pgtype.Timestamptz{}
	}
	return pgtype.Timestamptz{Time: t.Std(), Valid: true}
}

// floor is instant, with the beginning of time where nothing is known.
func floor(t claim.Time) pgtype.Timestamptz {
	return pgtype.Timestamptz{Time: t.Std(), Valid: true}
}

// completions are the arrays of what a statement completes records with.
type completions struct {
	outcome, omitted      int2s
	contentType           texts
	metadata, sum, inline byteas
	aside                 int8s

	// Of those whose bodies go aside: their places, sums and bodies.
	places       []int
	sums, bodies byteas
}

// add appends c, which may be nil, at a place.
func (cs *completions) add(place int, c *claim.Completion) {
	if c == nil {
		c = &none
	}
	cs.outcome, cs.omitted = append(cs.outcome, int16(c.Outcome)), append(cs.omitted, int16(c.Omitted))
	cs.contentType = append(cs.contentType, c.ContentType)
	var metadata, sum, inline []byte
	aside := int64(0)
	if c.Outcome != claim.NoOutcome {
		metadata, sum, inline = codec.AppendMetadata(nil, c.Metadata), c.Sum[:], c.Body
	}
	if len(inline) > inlineMax {
		aside = int64(len(inline))
		cs.places, cs.sums, cs.bodies = append(cs.places, place), append(cs.sums, sum), append(cs.bodies, inline)
		inline = nil
	}
	cs.metadata, cs.sum, cs.inline = append(cs.metadata, metadata), append(cs.sum, sum), append(cs.inline, inline)
	cs.aside = append(cs.aside, aside)
}

var none claim.Completion

func (cs *completions) args() []any {
	return []any{cs.outcome, cs.omitted, cs.contentType, cs.metadata, cs.sum, cs.inline, cs.aside}
}

// put is the statement that stores the bodies, if there are any.
func (cs *completions) put(k *keys, b storetime.Bounds) []query {
	if len(cs.places) == 0 {
		return nil
	}
	return []query{{sql: sqlBodyPut, args: append(append(held(b), k.only(cs.places).args()...), cs.sums, cs.bodies)}}
}

// requests are the arrays of what begins a life.
type requests struct {
	attempt                           uuids
	digests                           byteas
	eventTime, insertBefore           instants
	lease, window, retention, holdMax intervals
	hold                              bools
	attemptsMax, resultBytesMax       int8s
}

func (rs *requests) add(r *claim.Request) {
	rs.attempt = append(rs.attempt, r.Attempt)
	rs.digests = append(rs.digests, digestBytes(r.Digests))
	rs.eventTime, rs.insertBefore = append(rs.eventTime, given(r.EventTime)), append(rs.insertBefore, r.InsertBefore)
	rs.lease, rs.window = append(rs.lease, r.Lease), append(rs.window, r.Policy.Window)
	rs.retention, rs.holdMax = append(rs.retention, r.Policy.Retention), append(rs.holdMax, r.Policy.HoldMax)
	rs.hold = append(rs.hold, r.Policy.Hold)
	rs.attemptsMax = append(rs.attemptsMax, int64(r.Policy.AttemptsMax))
	rs.resultBytesMax = append(rs.resultBytesMax, int64(r.Policy.ResultBytesMax))
}

func (rs *requests) args() []any {
	return []any{
		rs.attempt, rs.digests, rs.eventTime, rs.insertBefore, rs.lease, rs.hold, rs.attemptsMax,
		rs.window, rs.retention, rs.holdMax, rs.resultBytesMax,
	}
}

// given is the time of an event in an array: NULL where there is none.
func given(t claim.Time) claim.Time {
	if t == 0 {
		return claim.Never
	}
	return t
}

// digestBytes is never NULL.
func digestBytes(ds []claim.Digest) []byte {
	if len(ds) == 0 {
		return []byte{}
	}
	return codec.AppendDigests(nil, ds)
}
