package reliability_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/sqlstore"
)

// shopID is the tenant of every server here.
const shopID claim.TenantID = 1

// read asks the database itself, past all servers and proxies.
func (c *cluster) read(keys []claim.Key) []storage.Found {
	c.t.Helper()
	s, err := sqlstore.Open(c.t.Context(), sqlstore.Config{URL: c.url, Conns: 1, SweepConns: 1})
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			c.t.Error(err)
		}
	}()
	var found []storage.Found
	for some := range slices.Chunk(keys, claim.BatchItemsMax) {
		more, err := s.Get(c.t.Context(), some)
		if err != nil {
			c.t.Fatal(err)
		}
		found = append(found, more...)
	}
	for i := range found {
		if found[i].Err != nil {
			c.t.Fatalf("%v: %v", keys[i], found[i].Err)
		}
	}
	return found
}

// stored is what is in the database of each key of a history, as if somebody
// had looked it up.
func (c *cluster) stored(h *history) []event {
	c.t.Helper()
	var keys []claim.Key
	for _, events := range h.all() {
		keys = append(keys, claim.Key{Tenant: shopID, Consumer: events[0].op.consumer, EventID: events[0].op.event})
	}
	call := h.now()
	found := c.read(keys)
	end := h.now()
	events := make([]event, len(keys))
	for i, k := range keys {
		rec := &found[i].Record
		r := reply{verdict: rec.Effective(found[i].Now).String()}
		if rec.State != claim.Absent {
			r.attempt, r.number, r.fence = uuid.UUID(rec.AttemptID).String(), rec.Attempt, int64(rec.Fence)
			r.takeover = takeoverWords[rec.Takeover]
		}
		if rec.Completion != nil {
			r.body = short(string(rec.Completion.Body))
		}
		o := op{kind: lookupCall, consumer: k.Consumer, event: k.EventID}
		events[i] = event{client: fleetClients, op: o, reply: r, call: call, end: end, server: -1}
	}
	return events
}

var takeoverWords = map[claim.Takeover]string{
	claim.NoTakeover: "UNSPECIFIED", claim.LeaseLapsed: "LEASE_LAPSED", claim.AttemptReleased: "RELEASED",
}

// mustKeepPromises looks at what became of every errand, and at what the
// database has of it.
func (s *shop) mustKeepPromises(c *cluster) {
	s.t.Helper()
	var keys []claim.Key
	var errands []errand
	for e := range s.mu.files {
		keys, errands = append(keys, claim.Key{Tenant: shopID, Consumer: e.consumer, EventID: e.event}), append(errands, e)
	}
	counts := map[string]int{}
	for i, got := range c.read(keys) {
		e, f := errands[i], s.mu.files[errands[i]]
		if err := f.faults(e); err != nil {
			s.t.Errorf("%v: %v", e, err)
		}
		f.count(counts)
		f.mustBeStored(s.t, e, &got)
	}
	s.t.Logf("%d errands: %v", len(errands), counts)
	for _, what := range []string{"taken over", "in doubt", "done at once", "done late"} {
		if counts[what] == 0 {
			s.t.Errorf("no errand was %s: %v", what, counts)
		}
	}
}

func (f *file) count(counts map[string]int) {
	switch {
	case len(f.runs) > 1:
		counts["taken over"]++
	case f.inDoubt > 0:
		counts["in doubt"]++
	}
	if f.tries == shopCopies {
		counts["done at once"]++
	} else if len(f.accepted) > 0 {
		counts["done late"]++
	}
	counts["runs"] += len(f.runs)
	counts["tries"] += f.tries
}

// mustBeStored compares what was acknowledged with the record.
func (f *file) mustBeStored(t *testing.T, e errand, got *storage.Found) {
	t.Helper()
	rec := &got.Record
	for _, r := range f.runs {
		if int64(rec.Fence) < r.fence {
			t.Errorf("%v: the record has fence %d, and fence %d was granted", e, rec.Fence, r.fence)
		}
	}
	if len(f.accepted) == 0 {
		return
	}
	body := f.accepted[0].body
	if rec.State != claim.Completed || string(rec.Completion.Body) != body {
		t.Errorf("%v: %.100q was acknowledged, and the record is %v %+v", e, body, rec.State, rec.Completion)
	}
	if want := fmt.Sprintf("%s, attempt %d, fence %d", e.event, rec.Attempt, rec.Fence); strings.TrimRight(body, ".") != want {
		t.Errorf("%v: the result is %.100q, and the record's grant is %q", e, body, want)
	}
}
