package server_test

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect/v2"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storagetest"
)

// answer is all that a caller sees of a reply.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) String() string {
	var b strings.Builder
	fmt.Fprintln(&b, a.status)
	for _, k := range slices.Sorted(maps.Keys(a.header)) {
		fmt.Fprintln(&b, k, a.header[k])
	}
	return b.String() + a.body
}

// ask sends a claim with an Authorization header and a fixed request ID.
func (r *rig) ask(authorization string) answer {
	req := httptest.NewRequestWithContext(r.t.Context(), http.MethodPost, "/warifu.v1.ClaimService/Claim",
		strings.NewReader(`{"consumer":"orders","eventId":"e","attemptId":"`+attemptA+`"}`))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", "fixed")
	if authorization != "" {
		req.Header.Set("Authorization", authorization)
	}
	w := httptest.NewRecorder()
	r.server.Handler().ServeHTTP(w, req)
	return answer{w.Code, w.Header(), w.Body.String()}
}

// TestUnauthenticated: whatever is wrong with a credential, the answer is the
// same to the byte, and nothing is asked of the store.
func TestUnauthenticated(t *testing.T) {
	t.Parallel()
	r := setup(t)
	good := r.keys["shop"]
	parts := strings.Split(good, "_")
	stranger, _ := tenant.NewKey("test")
	otherSecret, _ := tenant.NewKey("test")
	mixed := strings.Join([]string{parts[0], parts[1], parts[2], strings.Split(otherSecret, "_")[3]}, "_")
	rows := map[string]string{
		"missing":         "",
		"no scheme":       good,
		"other scheme":    "Basic " + good,
		"empty":           "Bearer ",
		"unknown":         "Bearer " + stranger,
		"wrong secret":    "Bearer " + withChecksum(mixed),
		"wrong checksum":  "Bearer " + good[:len(good)-1] + string('0'+(good[len(good)-1]-'0'+1)%2),
		"revoked":         "Bearer " + r.keys["revoked"],
		"expired":         "Bearer " + r.keys["expired"],
		"with space":      "Bearer " + good + " ",
		"twice":           "Bearer Bearer " + good,
		"long":            "Bearer " + strings.Repeat("wf_", 5000),
		"not UTF-8":       "Bearer \xff\xfe",
		"truncated":       "Bearer " + good[:len(good)-9],
		"upper-case":      "Bearer " + strings.ToUpper(good),
		"two credentials": "Bearer " + good + "," + good,
	}
	want := r.ask("").String()
	for name, authorization := range rows {
		if got := r.ask(authorization).String(); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
		}
	}
	if !strings.Contains(want, "401") || !strings.Contains(want, "unauthenticated") || !strings.Contains(want, "Bearer") {
		t.Errorf("the answer is %s", want)
	}
	if n := r.store.Trips(); n != 0 {
		t.Errorf("the store was asked %d times", n)
	}
	for _, scheme := range []string{"Bearer ", "bearer ", "BEARER "} {
		if got := r.ask(scheme + good); got.status != http.StatusOK {
			t.Errorf("%q with a good key: %v", scheme, got)
		}
	}
}

// TestSwap: a key that is revoked is refused from the next call on, and one
// that expires at the instant it says.
func TestSwap(t *testing.T) {
	t.Parallel()
	r := setup(t)
	if got := r.ask("Bearer " + r.keys["shop"]).status; got != http.StatusOK {
		t.Fatalf("status %d", got)
	}
	r.clock.Set(storagetest.Start.Add(-1000))
	if got := r.ask("Bearer " + r.keys["expired"]).status; got != http.StatusOK {
		t.Errorf("before it expires: status %d", got)
	}
	empty, err := tenant.NewTable(nil)
	if err != nil {
		t.Fatal(err)
	}
	r.dir.Swap(empty)
	if got := r.ask("Bearer " + r.keys["shop"]).status; got != http.StatusUnauthorized {
		t.Errorf("after the swap: status %d", got)
	}
	r.dir.Swap(r.table)
	if got := r.ask("Bearer " + r.keys["shop"]).status; got != http.StatusOK {
		t.Errorf("after swapping back: status %d", got)
	}
}

// scopeOf says a second time which scope each procedure demands: a change has to
// be made twice and in sight.
var scopeOf = map[string]string{
	"Claim": "claim", "BatchClaim": "claim", "Complete": "claim", "BatchComplete": "claim", "Extend": "claim", "Release": "claim",
	"GetPolicy": "claim", "Lookup": "read", "ListClaims": "read", "ResolveClaim": "resolve", "ForgetClaim": "resolve", "ResolveClaims": "resolve",
	"PutConsumer": "admin:tenant", "GetConsumer": "admin:tenant", "ListConsumers": "admin:tenant", "DeleteConsumer": "admin:tenant",
	"CreateKey": "admin:tenant", "RotateKey": "admin:tenant", "RevokeKey": "admin:tenant", "ListKeys": "admin:tenant", "GetUsage": "admin:tenant",
	"ListAudit": "admin:tenant", "ListFindings": "admin:tenant", "UpdateFinding": "admin:tenant", "RotateDataKey": "admin:tenant",
	"ShredResults": "admin:tenant", "CreateTenant": "admin:platform", "GetTenant": "admin:platform", "ListTenants": "admin:platform",
	"UpdateTenant": "admin:platform", "SuspendTenant": "admin:platform", "ResumeTenant": "admin:platform", "DeleteTenant": "admin:platform",
	"ListJobs": "admin:platform",
}

// TestScopes: every procedure demands one scope, and takes no other for it. Keys
// of the platform claim nothing, whatever their scopes.
func TestScopes(t *testing.T) {
	t.Parallel()
	in := install(t)
	keys := map[string][]string{}
	for _, scope := range []string{"claim", "read", "resolve", "admin:tenant"} {
		keys[scope] = []string{scope}
	}
	in.tenant("acme", keys)
	in.keys["admin:platform"] = in.platformKey("admin:platform")
	in.keys["platform, all"] = in.platformKey("claim", "read", "resolve", "admin:tenant", "admin:platform")
	seen := 0
	for spec := range in.server.Connect().Specs() {
		service, method, _ := strings.Cut(strings.TrimPrefix(spec.Procedure, "/"), "/")
		if !strings.HasPrefix(service, "warifu.") {
			continue
		}
		seen++
		for _, key := range []string{"claim", "read", "resolve", "admin:tenant", "admin:platform", "platform, all"} {
			allowed := scopeOf[method] == key || key == "platform, all" && service != "warifu.v1.ClaimService"
			req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, spec.Procedure, strings.NewReader("{}"))
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Authorization", "Bearer "+in.keys[key])
			w := httptest.NewRecorder()
			in.server.Handler().ServeHTTP(w, req)
			if got := w.Code != http.StatusForbidden; got != allowed {
				t.Errorf("%s with %q: status %d", method, key, w.Code)
			}
			if !allowed && !strings.Contains(w.Body.String(), "permission_denied") {
				t.Errorf("%s: %s", method, w.Body)
			}
		}
	}
	if seen != len(scopeOf) {
		t.Errorf("%d procedures, and %d have a scope here", seen, len(scopeOf))
	}
}

// TestIsolation: nothing of tenant "shop" is observable with the credentials
// of tenant "other": what it is told is what it is told of keys that nobody
// ever used.
func TestIsolation(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for _, id := range []string{"live", "done", "released"} {
		g := r.grant(request(id, attemptA))
		switch id {
		case "done":
			r.complete(id, g, success("secret"))
		case "released":
			if _, err := r.client("shop").Release(t.Context(), &warifuv1.ReleaseRequest{Consumer: "orders", EventId: id, AttemptId: attemptA, Fence: g.GetFence()}); err != nil {
				t.Fatal(err)
			}
		}
	}
	fence := r.grant(request("live", attemptA)).GetFence()
	untouched := func(method, body string) string {
		_, want := r.post("other", method, strings.ReplaceAll(body, "%", "nobody"))
		return compact(t, strings.ReplaceAll(want, "nobody", "%"))
	}
	owner := fmt.Sprintf(`{"consumer":"orders","eventId":"%%","attemptId":%q,"fence":%d`, attemptA, fence)
	calls := map[string]string{
		"Lookup":   `{"consumer":"orders","eventId":"%"}`,
		"Complete": owner + `,"completion":{"outcome":"OUTCOME_SUCCEEDED"}}`,
		"Release":  owner + "}",
		"Extend":   `{"items":[` + owner + `}]}`,
		"Claim":    fmt.Sprintf(`{"consumer":"orders","eventId":"%%","attemptId":%q}`, attemptA),
	}
	for _, method := range []string{"Lookup", "Complete", "Release", "Extend", "Claim"} {
		want := untouched(method, calls[method])
		for _, id := range []string{"live", "done", "released"} {
			_, got := r.post("other", method, strings.ReplaceAll(calls[method], "%", id))
			if got = compact(t, strings.ReplaceAll(got, `"`+id+`"`, `"%"`)); got != want {
				t.Errorf("%s of %s tells\n%s\nand of a key that nobody used\n%s", method, id, got, want)
			}
		}
	}
	list, err := r.adminClient("other").ListClaims(t.Context(), &warifuv1.ListClaimsRequest{})
	if err != nil || len(list.GetClaims()) != 4 { // its own, from the claims above
		t.Errorf("list = %v, %v", list, err)
	}
	// And the other way round: what "other" did changed nothing for "shop".
	res, err := r.client("shop").Claim(t.Context(), request("done", attemptB))
	if err != nil || string(res.GetResult().GetResult()) != "secret" {
		t.Errorf("shop's own event = %v, %v", res, err)
	}
}

// TestListClaims pages, filters, and refuses page tokens that are not ours.
func TestListClaims(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for _, id := range []string{"a1", "a2", "a3", "b1"} {
		g := r.grant(request(id, attemptA))
		if id == "a2" {
			r.complete(id, g, success("body"))
		}
	}
	if _, err := r.client("other").Claim(t.Context(), request("a9", attemptA)); err != nil {
		t.Fatal(err)
	}
	admin := r.adminClient("shop")
	list := func(m *warifuv1.ListClaimsRequest) (ids []string, res *warifuv1.ListClaimsResponse) {
		t.Helper()
		res, err := admin.ListClaims(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range res.GetClaims() {
			ids = append(ids, c.GetEventId())
			if len(c.GetResult().GetResult()) != 0 {
				t.Errorf("%s shows a body", c.GetEventId())
			}
		}
		return ids, res
	}
	all := func(m *warifuv1.ListClaimsRequest) (ids []string) {
		for {
			page, res := list(m)
			ids = append(ids, page...)
			if m.PageToken = res.GetNextPageToken(); m.PageToken == "" {
				return ids
			}
		}
	}
	if got := fmt.Sprint(all(&warifuv1.ListClaimsRequest{PageSize: 1})); got != "[a1 a2 a3 b1]" {
		t.Errorf("page by page: %s", got)
	}
	if got := fmt.Sprint(all(&warifuv1.ListClaimsRequest{Consumer: "orders", EventIdPrefix: "a"})); got != "[a1 a2 a3]" {
		t.Errorf("by prefix: %s", got)
	}
	if got := fmt.Sprint(all(&warifuv1.ListClaimsRequest{States: []warifuv1.State{warifuv1.State_STATE_COMPLETED}})); got != "[a2]" {
		t.Errorf("by state: %s", got)
	}
	_, res := list(&warifuv1.ListClaimsRequest{Consumer: "orders", PageSize: 1})
	token := res.GetNextPageToken()
	flipped := []byte(token)
	flipped[len(flipped)-2] ^= 1
	refuse := map[string]struct {
		key string
		m   *warifuv1.ListClaimsRequest
	}{
		"of another tenant":    {"other", &warifuv1.ListClaimsRequest{Consumer: "orders", PageToken: token}},
		"of another consumer":  {"shop", &warifuv1.ListClaimsRequest{Consumer: "open", PageToken: token}},
		"of no consumer":       {"shop", &warifuv1.ListClaimsRequest{PageToken: token}},
		"of another prefix":    {"shop", &warifuv1.ListClaimsRequest{Consumer: "orders", EventIdPrefix: "a", PageToken: token}},
		"of other states":      {"shop", &warifuv1.ListClaimsRequest{Consumer: "orders", States: []warifuv1.State{warifuv1.State_STATE_COMPLETED}, PageToken: token}},
		"with a bit flipped":   {"shop", &warifuv1.ListClaimsRequest{Consumer: "orders", PageToken: string(flipped)}},
		"made up":              {"shop", &warifuv1.ListClaimsRequest{Consumer: "orders", PageToken: "bWFkZSB1cA"}},
		"not base64":           {"shop", &warifuv1.ListClaimsRequest{Consumer: "orders", PageToken: "%%%"}},
		"far too long":         {"shop", &warifuv1.ListClaimsRequest{Consumer: "orders", PageToken: strings.Repeat("A", 1<<16)}},
		"truncated to its MAC": {"shop", &warifuv1.ListClaimsRequest{Consumer: "orders", PageToken: token[:22]}},
	}
	r.store.Reset()
	for name, row := range refuse {
		_, err := r.adminClient(row.key).ListClaims(t.Context(), row.m)
		if connect.CodeOf(err) != connect.CodeInvalidArgument || info(t, err).GetReason() != warifuv1.Reason_REASON_INVALID_PAGE_TOKEN {
			t.Errorf("a token %s: %v", name, err)
		}
	}
	if n := r.store.Calls(storagetest.ListPage); n != 0 {
		t.Errorf("the store was asked %d times with a forged token", n)
	}
	// The page size is no part of what a token is for, the order of states neither.
	if ids, _ := list(&warifuv1.ListClaimsRequest{Consumer: "orders", PageSize: 3, PageToken: token}); fmt.Sprint(ids) != "[a2 a3 b1]" {
		t.Errorf("with another page size: %v", ids)
	}
	r.clock.Advance(claim.RetentionDefault) // swept or not, what has expired is not there
	if ids, _ := list(&warifuv1.ListClaimsRequest{}); len(ids) != 0 {
		t.Errorf("expired claims are listed: %v", ids)
	}
}
