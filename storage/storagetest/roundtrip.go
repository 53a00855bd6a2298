package storagetest

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/warifu/warifu/storage/claim"
)

var roundTripCases = []testCase{
	{"round-trip/every-field", func(e *env) {
		for i, req := range fullRequests() {
			rec := e.granted(req)
			e.wantStored(rec)
			for j, c := range fullCompletions() {
				one := requestFor(key(fmt.Sprintf("shot-%d-%d", i, j)), 1)
				one.Digests, one.EventTime, one.Policy, one.Record = req.Digests, req.EventTime, req.Policy, c
				e.wantStored(e.granted(one))
			}
		}
	}},
	{"round-trip/every-completion", func(e *env) {
		for i, c := range fullCompletions() {
			rec := e.granted(request(fmt.Sprint(i), 1))
			done := e.must(e.transition(complete(rec, c)))
			if !done.Completion.Same(c) || done.Completion.Omitted != c.Omitted || !bytes.Equal(done.Completion.Body, c.Body) {
				e.Fatalf("completed as %s", show(done))
			}
			e.wantStored(done)
		}
	}},
	{"round-trip/largest-results", func(e *env) {
		const n = 3
		var keys []claim.Key
		var want []claim.Record
		for i := range n {
			c := claim.Completion{Outcome: claim.Succeeded, ContentType: "application/octet-stream", Body: pattern(claim.ResultBytesMax, i)}.Summed()
			rec := e.granted(request(fmt.Sprint(i), 1))
			want = append(want, e.must(e.transition(complete(rec, &c))))
			keys = append(keys, rec.Key)
		}
		for i, f := range e.get(keys...) {
			e.wantRecord(f.Record, want[i])
			if !bytes.Equal(f.Record.Completion.Body, pattern(claim.ResultBytesMax, i)) {
				e.Fatalf("body %d came back as other bytes", i)
			}
		}
	}},
	{"round-trip/a-result-belongs-to-its-grant", func(e *env) {
		// A body of an earlier life must not come back in a later one.
		old := e.must(e.transition(complete(e.granted(request("a", 1)), result("old"))))
		e.goTo(old.ExpiresAt)
		req := request("a", 2)
		anew := e.must(e.replace(swapOf(claim.BeginAnew, old, &req)))
		if anew.Completion != nil {
			e.Fatalf("begun anew as %s", show(anew))
		}
		e.wantStored(anew)
		empty := claim.Completion{Outcome: claim.Rejected}.Summed()
		e.wantStored(e.must(e.transition(complete(anew, &empty))))
	}},
}

// pattern is n bytes that no compression makes small and no offset error
// leaves the same.
func pattern(n, seed int) []byte {
	out := make([]byte, n)
	x := uint32(seed)*2654435761 + 1
	for i := range out {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		out[i] = byte(x)
	}
	return out
}

// fullRequests are requests at the ends of every field's range.
func fullRequests() []claim.Request {
	least := request("least", 1)
	least.Digests, least.Policy = nil, claim.Policy{Window: claim.WindowMin, Retention: claim.WindowMin, HoldMax: claim.LeaseMin}
	least.Lease = claim.LeaseMin

	most := request(strings.Repeat("\U0001f363", claim.EventIDBytesMax/4), 1)
	most.Key.Consumer = strings.Repeat("C", claim.ConsumerCharsMax)
	most.Key.Tenant = 1<<63 - 1
	most.Digests = nil
	for i := range claim.DigestsMax {
		most.Digests = append(most.Digests, claim.Digest{
			Scheme: strings.Repeat(string(rune('a'+i)), claim.SchemeCharsMax), Value: pattern(claim.DigestBytesMax, i),
		})
	}
	most.Lease = claim.LeaseMax
	most.Policy = claim.Policy{
		Hold: true, AttemptsMax: 1<<32 - 1, Window: claim.WindowMax, Retention: 2 * claim.WindowMax,
		HoldMax: 365 * 24 * time.Hour, ResultBytesMax: claim.ResultBytesMax,
	}
	most.EventTime = claim.FromTime(Start.Add(-time.Hour)) + 1
	for i := range most.Attempt {
		most.Attempt[i] = 0xff
	}

	unordered := request("digests keep their order", 1)
	unordered.Digests = []claim.Digest{{Scheme: "z", Value: []byte{0}}, {Scheme: "a"}, {Scheme: "Z", Value: []byte{0, 0xff, 0}}}
	unordered.EventTime = 1
	return []claim.Request{least, most, unordered}
}

// fullCompletions are completions at the ends of every field's range.
func fullCompletions() []*claim.Completion {
	empty := claim.Completion{Outcome: claim.Succeeded}.Summed()
	rejected := claim.Completion{Outcome: claim.Rejected, ContentType: strings.Repeat("t", claim.ContentTypeMax), Body: []byte{0}}.Summed()
	full := claim.Completion{Outcome: claim.Succeeded, ContentType: "application/json; charset=utf-8", Body: pattern(5000, 1)}
	for i := range claim.MetadataMax {
		full.Metadata = append(full.Metadata, claim.Pair{
			Name: fmt.Sprintf("name-%02d", i), Value: strings.Repeat("é", (claim.MetadataBytesMax/claim.MetadataMax-7)/2),
		})
	}
	full.Metadata[3].Value = ""
	all := []*claim.Completion{&empty, &rejected, ptr(full.Summed())}
	for _, why := range []claim.Omission{claim.TooLarge, claim.Shredded, claim.BatchBudget, claim.StoreFull, claim.Unreadable} {
		all = append(all, full.Summed().Without(why))
	}
	return all
}
