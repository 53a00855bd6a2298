package sqlstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storetime"
)

// listLook is how many records of each shard a filtered page looks at.
const listLook = 200

// highest follows every text of the contract's lengths in byte order.
var highest = strings.Repeat(string(utf8.MaxRune), claim.EventIDBytesMax/4)

var everyState = []int16{
	int16(claim.InProgress), int16(claim.Released), int16(claim.InDoubt), int16(claim.Completed), int16(claim.Forgotten),
}

// listing is one page while it is read.
type listing struct {
	storage.List
	after    claim.Key // the cursor: what is listed is behind it,
	from, to claim.Key // from here, which may be the cursor, up to there and with it
	states   []int16
	look     int // records of each shard
	records  []claim.Record
	horizon  *claim.Key // nil: everything up to to was looked at
	now      claim.Time
}

// List implements storage.Store.
func (s *Store) List(ctx context.Context, l storage.List) (storage.Page, error) {
	p, err := newListing(l)
	if err != nil {
		return storage.Page{}, err
	}
	leave, err := s.enter(ctx)
	if err != nil {
		return storage.Page{}, err
	}
	defer leave()
	// The state that decisions see depends on the time, so that is read first.
	p.now, err = s.readClock(ctx)
	if err == nil {
		err = s.trip(ctx, s.sweeps, reads, func(storetime.Bounds) []query { return p.queries() })
	}
	if err != nil {
		return storage.Page{}, err
	}
	return p.page(), nil
}

func newListing(l storage.List) (*listing, error) {
	if l.Limit < 1 || l.Limit > storage.ListLimitMax {
		return nil, fmt.Errorf("list: limit %d is not in 1–%d", l.Limit, storage.ListLimitMax)
	}
	if l.Prefix != "" && l.Consumer == "" {
		return nil, errors.New("list: a prefix needs a consumer")
	}
	after, err := decodePosition(listCursor, l.Cursor)
	if err != nil {
		return nil, err
	}
	if len(l.Cursor) > 0 && after.key.Tenant != l.Tenant {
		return nil, storage.ErrCursor
	}
	p := &listing{List: l, after: after.key, to: claim.Key{Consumer: highest}, states: everyState}
	if l.Consumer != "" {
		p.within(l.Consumer, l.Prefix)
	}
	if less(&p.from, &p.after) {
		p.from = p.after
	}
	// Shards are even: a page needs about as much of each. More is looked at, so
	// that one which is not has its share.
	p.look = l.Limit/shards*2 + shards
	if len(l.States) > 0 || l.Prefix != valid(l.Prefix) {
		p.look = listLook
	}
	if len(l.States) > 0 {
		p.states = nil
		for _, state := range l.States {
			p.states = append(p.states, int16(state))
		}
	}
	return p, nil
}

// within narrows the page to a consumer, and to the event IDs that begin with
// the whole characters of prefix. What it cuts within a character is looked at
// later.
func (p *listing) within(consumer, prefix string) {
	p.from = claim.Key{Consumer: consumer, EventID: valid(prefix)}
	p.to = claim.Key{Consumer: consumer, EventID: p.from.EventID + highest}
}

// valid returns the whole characters that s begins with.
func valid(s string) string {
	for len(s) > 0 && !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s
}

// queries read a range of each shard, and how far into it that was.
func (p *listing) queries() []query {
	p.records, p.horizon = p.records[:0], nil
	var queries []query
	for shard := range int16(shards) {
		where := []any{shard, int64(p.Tenant), p.from.Consumer, p.from.EventID, p.to.Consumer, p.to.EventID}
		queries = append(queries,
			query{sql: sqlList, args: append(where[:len(where):len(where)], int64(p.look), floor(p.now), p.states), row: p.record},
			query{sql: sqlListHorizon, args: append(where[:len(where):len(where)], int64(p.look-1)), row: p.looked})
	}
	return queries
}

// looked narrows the horizon to the nearest of all shards.
func (p *listing) looked(r row) error {
	k := claim.Key{Tenant: p.Tenant, Consumer: r.text(), EventID: r.text()}
	if p.horizon == nil || less(&k, p.horizon) {
		p.horizon = &k
	}
	return r.end()
}

func (p *listing) record(r row) error {
	var rec claim.Record
	key := claim.Key{Tenant: p.Tenant, Consumer: r.text(), EventID: r.text()}
	r.record(&rec, false)
	rec.Key = key
	p.records = append(p.records, rec)
	return r.end()
}

// page merges the shards. It is what is known for sure: behind the cursor, up to
// the horizon, and no more than asked for.
func (p *listing) page() storage.Page {
	slices.SortFunc(p.records, func(a, b claim.Record) int {
		return cmp.Or(cmp.Compare(a.Key.Consumer, b.Key.Consumer), cmp.Compare(a.Key.EventID, b.Key.EventID))
	})
	page := storage.Page{Now: p.now}
	for i := range p.records {
		rec := &p.records[i]
		if p.horizon != nil && less(p.horizon, &rec.Key) {
			break
		}
		if len(p.Cursor) > 0 && !less(&p.after, &rec.Key) || !strings.HasPrefix(rec.Key.EventID, p.Prefix) {
			continue
		}
		if len(page.Records) == p.Limit {
			page.Cursor = position{key: page.Records[p.Limit-1].Key}.encode(listCursor)
			return page
		}
		page.Records = append(page.Records, *rec)
	}
	if p.horizon != nil {
		page.Cursor = position{key: *p.horizon}.encode(listCursor)
	}
	return page
}

func less(a, b *claim.Key) bool {
	return a.Consumer < b.Consumer || a.Consumer == b.Consumer && a.EventID < b.EventID
}
