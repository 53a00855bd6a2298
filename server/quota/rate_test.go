package quota

import (
	"strings"
	"testing"
	"time"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

func TestConfigReportsAllFaults(t *testing.T) {
	t.Parallel()
	_, err := New(Config{Share: 1.5})
	_, census := NewCensus(CensusConfig{Interval: time.Minute, Look: time.Hour, Pause: -1})
	for _, want := range []string{"Monotonic", "Share"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not reported: %v", want, err)
		}
	}
	for _, want := range []string{"Quotas", "Registry", "Store", "Tenants", "Owner", "negative", "Look"} {
		if census == nil || !strings.Contains(census.Error(), want) {
			t.Errorf("%s is not reported: %v", want, census)
		}
	}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	defaults := Limits{Requests: 1, Items: 2, LiveLeases: 3, Keys: 4, Bytes: 5, InDoubt: 0}
	if got := defaults.Resolve(registry.Limits{}); got != defaults {
		t.Errorf("nothing of its own: %+v", got)
	}
	own := registry.Limits{RequestsPerSecond: 10, ItemsPerSecond: 20, LiveLeasesMax: 30, KeysMax: 40, BytesMax: 50, InDoubtMax: 60}
	if got := defaults.Resolve(own); got != (Limits{10, 20, 30, 40, 50, 60}) {
		t.Errorf("all of its own: %+v", got)
	}
}

func TestRequests(t *testing.T) {
	t.Parallel()
	q, clock := setup(t)
	l := &Limits{Requests: 5}
	for i := range 10 {
		if e := q.TakeRequest(shop, l); e.Over() {
			t.Fatalf("request %d: %v", i, e)
		}
	}
	if e := q.TakeRequest(shop, l); e != (Exceeded{What: Requests, Limit: 5, RetryAfter: 200 * time.Millisecond}) {
		t.Errorf("over the rate: %+v", e)
	}
	if e := q.TakeRequest(shop+1, l); e.Over() {
		t.Errorf("another tenant: %v", e)
	}
	// Finishing is charged and never refused.
	for range 5 {
		q.ChargeRequest(shop, l)
	}
	clock.now += time.Second
	if e := q.TakeRequest(shop, l); !e.Over() {
		t.Error("what was charged was not paid")
	}
	clock.now += 200 * time.Millisecond
	if e := q.TakeRequest(shop, l); e.Over() {
		t.Errorf("what was charged was paid: %v", e)
	}
	for range 1000 { // no limit
		if e := q.TakeRequest(shop, &Limits{}); e.Over() {
			t.Fatal(e)
		}
	}
	if e := q.TakeRequest(shop, l); e.Over() {
		t.Errorf("a limit that is new begins full: %v", e)
	}
}

func TestItemsAreChargedWhenTheyFinish(t *testing.T) {
	t.Parallel()
	q, clock := setup(t)
	l := &Limits{Items: 1000}
	q.ChargeItems(shop, l, 3000)
	if n, after := q.TakeItems(shop, l, 1); n != 0 || after != time.Second+time.Millisecond {
		t.Errorf("in debt: %d, %v", n, after)
	}
	clock.now += time.Second + time.Millisecond
	if n, _ := q.TakeItems(shop, l, 5); n != 1 {
		t.Errorf("out of debt: %d", n)
	}
	if n, after := q.TakeItems(shop, &Limits{}, 1<<30); n != 1<<30 || after != 0 {
		t.Errorf("no limit: %d, %v", n, after)
	}
	if n, _ := q.TakeItems(shop, l, 0); n != 0 {
		t.Errorf("nothing wanted: %d", n)
	}
}

func TestRatesOfTheLastMinute(t *testing.T) {
	t.Parallel()
	q, clock := setup(t)
	l := &Limits{}
	for range 120 { // two minutes of one request and ten items per second
		_ = q.TakeRequest(shop, l)
		q.TakeItems(shop, l, 6)
		q.ChargeItems(shop, l, 4)
		clock.now += time.Second
	}
	if u := q.Usage(shop, l); u.RequestsPerSecond != 1 || u.ItemsPerSecond != 10 {
		t.Errorf("steady: %v requests/s, %v items/s", u.RequestsPerSecond, u.ItemsPerSecond)
	}
	clock.now += 30 * time.Second
	if u := q.Usage(shop, l); u.RequestsPerSecond != 0.5 {
		t.Errorf("half a minute later: %v", u.RequestsPerSecond)
	}
	clock.now += 40 * time.Second
	if u := q.Usage(shop, l); u.RequestsPerSecond != 0 {
		t.Errorf("more than a minute later: %v", u.RequestsPerSecond)
	}
	clock.now += 100 * time.Hour
	if u := q.Usage(shop, l); u.RequestsPerSecond != 0 || u.ItemsPerSecond != 0 {
		t.Errorf("long after: %+v", u)
	}
}

func TestKeepForgetsOthers(t *testing.T) {
	t.Parallel()
	q, _ := setup(t)
	l := &Limits{Requests: 1}
	for id := claim.TenantID(1); id <= 200; id++ {
		_ = q.TakeRequest(id, l)
		_ = q.TakeRequest(id, l)
	}
	q.Keep([]Tenant{{ID: 100}})
	if e := q.TakeRequest(100, l); !e.Over() {
		t.Error("a tenant that is kept begins anew")
	}
	if e := q.TakeRequest(99, l); e.Over() {
		t.Error("a tenant that is not kept was remembered")
	}
}

// TestNothingAllocates: all of it is on the path of every call.
func TestNothingAllocates(t *testing.T) {
	q, clock := setup(t)
	l := &Limits{1 << 20, 1 << 20, 1 << 40, 1 << 40, 1 << 40, 1 << 40}
	tight := &Limits{Requests: 1, Items: 1, Keys: 1}
	r, a := request("e"), claim.Answer{Decision: claim.Granted, Lease: 30 * time.Second}
	tr := claim.Transition{Kind: claim.Complete, Completion: &claim.Completion{Body: []byte("ok")}}
	id := claim.TenantID(1 << 40)
	for name, f := range map[string]func(){
		"request":    func() { _ = q.TakeRequest(id, l) },
		"refused":    func() { _ = q.TakeRequest(id+1, tight) },
		"charge":     func() { q.ChargeRequest(id, l); q.ChargeItems(id, l, 3) },
		"items":      func() { q.TakeItems(id, l, 10); q.TakeItems(id+1, tight, 10) },
		"standing":   func() { s := q.Standing(id, l, 10); _ = s.Tight() },
		"share":      func() { s, _ := q.Enter(id, 64, false); s.Leave() },
		"claim":      func() { q.NoteClaim(id, &r, &a) },
		"transition": func() { q.NoteTransition(id, &tr, &claim.Reply{Status: claim.OK}); clock.now += time.Second },
	} {
		f() // the tenant begins
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
