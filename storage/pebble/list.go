package pebble

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// listLookedMax bounds what one page looks at when filters match little.
const listLookedMax = 10_000

// List implements storage.Store. The cursor is the last key looked at.
func (s *Store) List(ctx context.Context, l storage.List) (page storage.Page, err error) {
	if err := s.enter(ctx, 0); err != nil {
		return page, err
	}
	defer s.life.RUnlock()
	if l.Limit < 1 || l.Limit > storage.ListLimitMax {
		return page, fmt.Errorf("list: limit %d is not in 1–%d", l.Limit, storage.ListLimitMax)
	}
	lower, upper, err := listBounds(l)
	if err != nil {
		return page, err
	}
	page.Now, _ = s.clock.now()
	v, err := s.view(ctx, lower, upper)
	if err != nil {
		return page, s.failed("list", err)
	}
	defer func() { err = errors.Join(err, s.failed("list", v.close())) }()
	looked := 0
	for v.next() {
		if len(page.Records) == l.Limit || looked == listLookedMax {
			return page, s.durable(ctx, s.latest(nil))
		}
		looked++
		if err := listOne(v, l.States, &page); err != nil {
			return storage.Page{}, s.failed("list", err)
		}
		page.Cursor = append(page.Cursor[:0], v.key...)
	}
	page.Cursor = nil
	return page, s.durable(ctx, s.latest(nil))
}

func listOne(v *view, states []claim.State, page *storage.Page) error {
	key, err := parseRecordKey(v.key)
	if err != nil {
		return err
	}
	var rec claim.Record
	if _, err := decodeRecord(&rec, key, v.value); err != nil {
		return err
	}
	if len(states) > 0 && !slices.Contains(states, rec.Effective(page.Now)) {
		return nil
	}
	if rec.Completion != nil && len(rec.Completion.Body) > 0 {
		c := *rec.Completion
		c.Body = nil
		rec.Completion = &c
	}
	page.Records = append(page.Records, rec)
	return nil
}

// listBounds returns the range of keys that a list may show.
func listBounds(l storage.List) (lower, upper []byte, err error) {
	if l.Prefix != "" && l.Consumer == "" {
		return nil, nil, errors.New("list: a prefix needs a consumer")
	}
	lower = binary.BigEndian.AppendUint64([]byte{recordPrefix}, uint64(l.Tenant))
	if l.Consumer != "" {
		lower = append(append(lower, l.Consumer...), 0)
		lower = append(lower, l.Prefix...)
	}
	upper = successor(lower)
	if l.Cursor == nil {
		return lower, upper, nil
	}
	if !bytes.HasPrefix(l.Cursor, lower) {
		return nil, nil, storage.ErrCursor
	}
	if _, err := parseRecordKey(l.Cursor); err != nil {
		return nil, nil, storage.ErrCursor
	}
	return append(slices.Clone(l.Cursor), 0), upper, nil
}

// successor returns the first key after all keys that begin with prefix.
func successor(prefix []byte) []byte {
	next := slices.Clone(prefix)
	for i := len(next) - 1; i >= 0; i-- {
		if next[i] < 0xff {
			next[i]++
			return next[:i+1]
		}
	}
	return nil
}
