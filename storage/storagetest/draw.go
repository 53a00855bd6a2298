package storagetest

import (
	"time"

	"pgregory.net/rapid"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// Histories have few keys and few attempts: what is interesting happens where
// they meet.
var (
	historyTenants   = []claim.TenantID{1, 256}
	historyConsumers = []string{"c", "c/e"}
	historyEvents    = []string{"e", "é"}
)

const historyAttempts = 3

func historyKeys() []claim.Key {
	var keys []claim.Key
	for _, tenant := range historyTenants {
		for _, consumer := range historyConsumers {
			for _, event := range historyEvents {
				keys = append(keys, claim.Key{Tenant: tenant, Consumer: consumer, EventID: event})
			}
		}
	}
	return keys
}

// drawKey prefers the first keys, so that most of a history is about a few.
func drawKey(t *rapid.T) claim.Key {
	keys := historyKeys()
	if rapid.IntRange(0, 3).Draw(t, "far") < 3 {
		keys = keys[:2]
	}
	return rapid.SampledFrom(keys).Draw(t, "key")
}

func drawKeys(t *rapid.T) []claim.Key {
	if rapid.IntRange(0, 3).Draw(t, "many") < 3 {
		return []claim.Key{drawKey(t)}
	}
	return rapid.SliceOfNDistinct(rapid.SampledFrom(historyKeys()), 1, 4, rapid.ID).Draw(t, "keys")
}

// pick draws a key that is stored, where there is one, and mostly one whose
// record is interesting.
func (h *script) pick(t *rapid.T, interesting func(*claim.Record) bool) claim.Key {
	var stored, preferred []claim.Key
	for _, rec := range h.chorus.peek(historyKeys()...) {
		if rec.State == claim.Absent {
			continue
		}
		stored = append(stored, rec.Key)
		if interesting(&rec) {
			preferred = append(preferred, rec.Key)
		}
	}
	switch {
	case len(stored) == 0:
		return drawKey(t)
	case len(preferred) > 0 && rapid.IntRange(0, 3).Draw(t, "any") < 3:
		return rapid.SampledFrom(preferred).Draw(t, "key")
	}
	return rapid.SampledFrom(stored).Draw(t, "key")
}

func drawTenantStep(t *rapid.T) storage.TenantStep {
	return storage.TenantStep{
		Tenant: rapid.SampledFrom(historyTenants).Draw(t, "tenant"),
		Limit:  rapid.SampledFrom([]int{1, 2, 40}).Draw(t, "limit"),
	}
}

func drawAttempt(t *rapid.T) claim.AttemptID {
	return attempt(rapid.IntRange(1, historyAttempts).Draw(t, "attempt"))
}

func (h *script) drawRequest(t *rapid.T, k claim.Key) claim.Request {
	r := claim.Request{
		Key: k, Attempt: drawAttempt(t), InsertBefore: claim.Never,
		Digests:              rapid.SampledFrom(historyDigests).Draw(t, "digests"),
		Lease:                rapid.SampledFrom([]time.Duration{time.Second, 10 * time.Second, time.Minute}).Draw(t, "lease"),
		Policy:               rapid.SampledFrom(historyPolicies).Draw(t, "policy"),
		AcceptNoCommonScheme: rapid.Bool().Draw(t, "no common scheme is fine"),
	}
	if rapid.IntRange(0, 9).Draw(t, "dated") == 0 {
		r.EventTime = h.now().Add(-time.Minute)
		r.InsertBefore = h.now() + claim.Time(rapid.Int64Range(-1, 1).Draw(t, "insert before"))
	}
	if rapid.IntRange(0, 4).Draw(t, "one shot") == 0 {
		r.Record = drawResult(t)
	}
	return r
}

var historyDigests = [][]claim.Digest{
	{{Scheme: "s", Value: []byte("A")}},
	{{Scheme: "s", Value: []byte("A")}},
	{{Scheme: "s", Value: []byte("A")}},
	{{Scheme: "s", Value: []byte("A")}, {Scheme: "t", Value: []byte("A")}},
	{{Scheme: "t", Value: []byte("A")}},
	{{Scheme: "s", Value: []byte("B")}},
	nil,
}

var historyPolicies = []claim.Policy{
	{Window: 30 * time.Second, Retention: time.Minute, HoldMax: 15 * time.Second},
	{Window: 30 * time.Second, Retention: time.Minute, HoldMax: 15 * time.Second, Hold: true},
	{Window: 30 * time.Second, Retention: 30 * time.Second, HoldMax: time.Hour, AttemptsMax: 2},
	{Window: time.Second, Retention: 10 * time.Minute, HoldMax: time.Hour, AttemptsMax: 1, ResultBytesMax: 1},
}

var historyResults = []*claim.Completion{
	result("x"), result("y"),
	ptr(claim.Completion{Outcome: claim.Rejected}.Summed()),
	ptr(claim.Completion{Outcome: claim.Succeeded, ContentType: "b", Body: pattern(6000, 1)}.Summed()),
	claim.Completion{Outcome: claim.Succeeded, Body: pattern(10, 2)}.Summed().Without(claim.TooLarge),
}

func drawResult(t *rapid.T) *claim.Completion {
	return historyResults[rapid.IntRange(0, len(historyResults)-1).Draw(t, "result")]
}

func drawTransition(t *rapid.T, who claim.Record) claim.Transition {
	switch rapid.SampledFrom([]claim.TransitionKind{claim.Complete, claim.Extend, claim.Release}).Draw(t, "kind") {
	case claim.Extend:
		return extend(who, rapid.SampledFrom([]time.Duration{time.Second, 20 * time.Second, time.Hour}).Draw(t, "extend by"))
	case claim.Release:
		return release(who)
	case claim.Complete:
	}
	return complete(who, drawResult(t))
}
