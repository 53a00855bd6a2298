package sqlstore

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/warifu/warifu/storage/claim"
)

// TestArraysAreTheDrivers: what an array writes is what the driver writes of it,
// byte for byte.
func TestArraysAreTheDrivers(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	random := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	for n := range 40 {
		p := struct { // as the driver takes them; nil would be NULL
			int2s  []int16
			int8s  []int64
			bools  []bool
			texts  []string
			byteas [][]byte
			uuids  [][16]byte
			times  []pgtype.Timestamptz
			spans  []time.Duration
		}{
			[]int16{}, []int64{}, []bool{}, []string{}, [][]byte{}, [][16]byte{}, []pgtype.Timestamptz{}, []time.Duration{},
		}
		at := instants{}
		for range n {
			p.int2s, p.int8s = append(p.int2s, int16(r.Uint32())), append(p.int8s, int64(r.Uint64()))
			p.bools, p.texts = append(p.bools, r.IntN(2) == 0), append(p.texts, string(random(r.IntN(40))))
			p.uuids = append(p.uuids, [16]byte(random(16)))
			p.spans = append(p.spans, time.Duration(r.Int64()))
			b := random(r.IntN(40))
			when, instant := claim.Time(r.Int64N(1<<52)), pgtype.Timestamptz{}
			if r.IntN(8) == 0 {
				b, when = nil, claim.Never
			} else {
				instant = floor(when)
			}
			p.byteas, p.times, at = append(p.byteas, b), append(p.times, instant), append(at, when)
		}
		for _, c := range []struct {
			name   string
			oid    uint32
			ours   array
			theirs any
		}{
			{"int2", pgtype.Int2ArrayOID, int2s(p.int2s), p.int2s},
			{"int8", pgtype.Int8ArrayOID, int8s(p.int8s), p.int8s},
			{"bool", pgtype.BoolArrayOID, bools(p.bools), p.bools},
			{"text", pgtype.TextArrayOID, texts(p.texts), p.texts},
			{"bytea", pgtype.ByteaArrayOID, byteas(p.byteas), p.byteas},
			{"uuid", pgtype.UUIDArrayOID, uuids(p.uuids), p.uuids},
			{"timestamptz", pgtype.TimestamptzArrayOID, at, p.times},
			{"interval", pgtype.IntervalArrayOID, intervals(p.spans), p.spans},
		} {
			// Behind something, as parameters stand in one piece of memory.
			want, err := pgtype.NewMap().Encode(c.oid, pgtype.BinaryFormatCode, c.theirs, []byte("x"))
			taught := pgtype.NewMap()
			teachArrays(taught)
			got, err2 := taught.Encode(c.oid, pgtype.BinaryFormatCode, c.ours, []byte("x"))
			if err != nil || err2 != nil || !bytes.Equal(got, want) {
				t.Fatalf("seed %d, %d of %s:\n%x, %v\n%x, %v", seed, n, c.name, got, err2, want, err)
			}
			if direct := c.ours.appendTo([]byte("x")); !bytes.Equal(direct, got) {
				t.Errorf("%s does not write itself", c.name)
			}
		}
	}
}

// TestArraysKeepTheirTypes: an array writes itself only where its elements are
// what the statement takes, and everything else is left to the driver.
func TestArraysKeepTheirTypes(t *testing.T) {
	t.Parallel()
	m := pgtype.NewMap()
	teachArrays(m)
	teachArrays(m) // a second time is none
	for _, oid := range arrayTypes {
		typ, ok := m.TypeForOID(oid)
		if !ok {
			t.Fatalf("type %d is unknown", oid)
		}
		c, ok := typ.Codec.(arrayCodec)
		if !ok {
			t.Fatalf("%s is not taught", typ.Name)
		}
		if _, twice := c.Codec.(arrayCodec); twice {
			t.Errorf("%s is taught twice", typ.Name)
		}
		if m.FormatCodeForOID(oid) != pgtype.BinaryFormatCode {
			t.Errorf("%s goes as text", typ.Name)
		}
		for _, a := range []array{int2s{}, int8s{}, bools{}, texts{}, byteas{}, uuids{}, instants{}, intervals{}} {
			_, own := c.PlanEncode(m, oid, pgtype.BinaryFormatCode, a).(arrayPlan)
			if of := c.Codec.(*pgtype.ArrayCodec).ElementType.OID; own != (of == a.element()) { //nolint:forcetypeassert // a test
				t.Errorf("%T writes itself as %s: %t", a, typ.Name, own)
			}
			if _, own := c.PlanEncode(m, oid, pgtype.TextFormatCode, a).(arrayPlan); own {
				t.Errorf("%T writes itself as the text of %s", a, typ.Name)
			}
		}
	}
	got, err := m.Encode(pgtype.Int8ArrayOID, pgtype.BinaryFormatCode, []int64{1, 2}, nil)
	if want := (int8s{1, 2}).appendTo(nil); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the driver's own slice: %x, %v", got, err)
	}
}

// TestInsertedInAnyOrder: the events that a statement names are found whatever
// their order, and one that was not sent is none.
func TestInsertedInAnyOrder(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	ids := make([]claim.Key, 50)
	for i := range ids {
		ids[i] = claim.Key{Tenant: 1, Consumer: "c", EventID: string(rune('A' + i))}
	}
	k := sorted(len(ids), func(i int) *claim.Key { return &ids[i] })
	g := &grants{reading: &reading{k: k}}
	backward := slices.Clone(k.order)
	slices.Reverse(backward)
	for _, order := range [][]int{k.order, r.Perm(len(ids)), backward} {
		for _, want := range order {
			if got, ok := g.inserted([]byte(ids[want].EventID)); !ok || got != want {
				t.Fatalf("seed %d: %q is item %d, %t", seed, ids[want].EventID, got, ok)
			}
		}
	}
	if i, ok := g.inserted([]byte("another")); ok {
		t.Errorf("an event that was not sent is item %d", i)
	}
}
