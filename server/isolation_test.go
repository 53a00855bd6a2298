package server_test

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

// services are all that this API has: a new one in these files is tested by
// being there.
func services() []protoreflect.ServiceDescriptor {
	var out []protoreflect.ServiceDescriptor
	for _, file := range []protoreflect.FileDescriptor{
		warifuv1.File_warifu_v1_claim_proto, warifuv1.File_warifu_v1_admin_proto, warifuv1.File_warifu_v1_platform_proto,
	} {
		for i := range file.Services().Len() {
			out = append(out, file.Services().Get(i))
		}
	}
	return out
}

// names are what a request can name things by.
type names struct {
	tenant, consumer, event, attempt, key, finding, prefix string
	fence                                                  int64
	tokens                                                 map[string]string // by list
}

// TestTenantsAreApart calls every procedure with a credential of one tenant and
// everything that another tenant has, and demands the bytes that it gives for
// things that nobody has.
func TestTenantsAreApart(t *testing.T) {
	t.Parallel()
	for _, service := range services() {
		for i := range service.Methods().Len() {
			method := service.Methods().Get(i)
			for _, fields := range [][]protoreflect.Name{nil, {"tenant"}, {"page_token"}, {"tenant", "page_token"}} {
				if slices.ContainsFunc(fields, func(f protoreflect.Name) bool { return method.Input().Fields().ByName(f) == nil }) {
					continue
				}
				t.Run(fmt.Sprintf("%s with %v", method.FullName(), fields), func(t *testing.T) {
					t.Parallel()
					theirs, nobodys := apart(t, method, fields, true), apart(t, method, fields, false)
					if theirs != nobodys {
						t.Errorf("of another tenant:\n%s\nof nobody:\n%s", theirs, nobodys)
					}
				})
			}
		}
	}
}

// apart makes an installation with a victim, calls the method as an intruder
// and returns what comes back, without what was sent.
func apart(t *testing.T, method protoreflect.MethodDescriptor, with []protoreflect.Name, theirs bool) string {
	t.Helper()
	in := install(t)
	victim := in.victim()
	in.tenant("intruder", map[string][]string{"intruder": {"claim", "read", "resolve", "admin:tenant"}})
	named := victim
	if !theirs {
		named = nobody(victim)
	}
	m := dynamicpb.NewMessage(method.Input())
	in.fill(m, &named, with)
	body, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	path := fmt.Sprintf("/%s/%s", method.Parent().FullName(), method.Name())
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, bytes.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+in.keys["intruder"])
	req.Header.Set("X-Request-Id", "r")
	before := in.everythingOf(4)
	w := httptest.NewRecorder()
	in.server.Handler().ServeHTTP(w, req)
	if after := in.everythingOf(4); after != before {
		t.Errorf("the other tenant had\n%s\nand has\n%s", before, after)
	}
	if w.Code == http.StatusNotFound && strings.Contains(w.Body.String(), "not served") {
		t.Fatalf("%s is not served", path)
	}
	return fmt.Sprint(w.Code, " ", named.hide(t, w.Body.String()))
}

// everythingOf is all that is stored of a tenant.
func (in *installation) everythingOf(id claim.TenantID) string {
	in.t.Helper()
	ctx := in.t.Context()
	all, err := in.rows.Load(ctx, 0)
	if err != nil {
		in.t.Fatal(err)
	}
	var out strings.Builder
	for _, r := range all.Tenants {
		if r.ID == id {
			fmt.Fprintf(&out, "%+v\n", r)
		}
	}
	for _, r := range all.Consumers {
		if r.Tenant == id {
			fmt.Fprintf(&out, "%+v\n", r)
		}
	}
	for _, r := range all.Keys {
		if r.Tenant == id {
			fmt.Fprintf(&out, "%+v\n", r)
		}
	}
	findings, err := in.rows.Findings(ctx, registry.FindingQuery{Scope: registry.Of(id), Limit: registry.PageMax})
	if err != nil {
		in.t.Fatal(err)
	}
	for _, f := range findings.Findings {
		fmt.Fprintf(&out, "%+v\n", f)
	}
	page, err := in.store.List(ctx, storage.List{Tenant: id, Limit: storage.ListLimitMax})
	if err != nil {
		in.t.Fatal(err)
	}
	for _, r := range page.Records {
		fmt.Fprintf(&out, "%+v\n", r)
	}
	lines := strings.Split(out.String(), "\n") // rows come in no order
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// victim is a tenant that has one of everything, and more than a page of it.
func (in *installation) victim() names {
	in.t.Helper()
	ctx := in.t.Context()
	made := in.tenant("victim", map[string][]string{"victim": {"claim", "read", "resolve", "admin:tenant"}})
	n := names{tenant: "victim", consumer: "secret-consumer", event: "event-0", prefix: "event-", tokens: map[string]string{}}
	for i := range 3 {
		_, err := in.team("victim").PutConsumer(ctx, &warifuv1.PutConsumerRequest{Name: fmt.Sprintf("secret-consumer%.*s", i, "xx"), Change: reason(0)})
		if err != nil {
			in.t.Fatal(err)
		}
		res, err := in.client("victim").Claim(ctx, &warifuv1.ClaimRequest{Consumer: n.consumer, EventId: fmt.Sprint("event-", i), AttemptId: attemptA})
		if err != nil {
			in.t.Fatal(err)
		}
		if i == 0 {
			n.attempt, n.fence = attemptA, res.GetGrant().GetFence()
		}
		f := registry.Finding{ID: registry.ID(uuid.New()), Tenant: 4, Kind: "test", State: registry.FindingAssigned, Consumer: n.consumer}
		if f.Tenant != 4 || made.GetId() != 4 {
			in.t.Fatalf("the victim is tenant %d", made.GetId())
		}
		if _, err := in.rows.Apply(ctx, registry.Change{ID: registry.ID(uuid.New()), Findings: []registry.Write[registry.Finding]{registry.Put(f)}}); err != nil {
			in.t.Fatal(err)
		}
		n.finding = f.ID.String()
		key, err := in.team("victim").CreateKey(ctx, &warifuv1.CreateKeyRequest{Scopes: []string{"claim"}, Change: reason(0)})
		if err != nil {
			in.t.Fatal(err)
		}
		n.key = key.GetKey().GetId()
	}
	in.tokensOf(&n)
	return n
}

// tokensOf takes the page token of each list of the victim.
func (in *installation) tokensOf(n *names) {
	in.t.Helper()
	ctx, a, c := in.t.Context(), in.team("victim"), in.adminClient("victim")
	take := func(name string, page interface{ GetNextPageToken() string }, err error) {
		in.t.Helper()
		if err != nil || page.GetNextPageToken() == "" {
			in.t.Fatalf("%s: no second page: %v", name, err)
		}
		n.tokens[name] = page.GetNextPageToken()
	}
	// With the filters that fill sets: then nothing but the tenant is another.
	claims, err := c.ListClaims(ctx, &warifuv1.ListClaimsRequest{
		Consumer: n.consumer, EventIdPrefix: n.prefix, PageSize: 1, States: []warifuv1.State{warifuv1.State_STATE_IN_PROGRESS},
	})
	take("ListClaimsRequest", claims, err)
	consumers, err := a.ListConsumers(ctx, &warifuv1.ListConsumersRequest{PageSize: 1, Prefix: n.consumer[:3]})
	take("ListConsumersRequest", consumers, err)
	keys, err := a.ListKeys(ctx, &warifuv1.ListKeysRequest{PageSize: 1})
	take("ListKeysRequest", keys, err)
	audit, err := a.ListAudit(ctx, &warifuv1.ListAuditRequest{PageSize: 1})
	take("ListAuditRequest", audit, err)
	findings, err := a.ListFindings(ctx, &warifuv1.ListFindingsRequest{PageSize: 1, States: []warifuv1.FindingState{warifuv1.FindingState_FINDING_STATE_ASSIGNED}})
	take("ListFindingsRequest", findings, err)
	// Lists that the victim cannot see: any token is a wrong one.
	for _, name := range []string{"ResolveClaimsRequest", "ListTenantsRequest", "ListJobsRequest"} {
		n.tokens[name] = n.tokens["ListClaimsRequest"]
	}
}

// nobody has things of the same shapes that do not exist.
func nobody(like names) names {
	n := names{
		tenant: "nobody", consumer: "other--consumer", event: "thing-0", prefix: "thing-", attempt: uuid.NewString(), fence: like.fence + 17,
		key: randomText(len(like.key)), finding: hex.EncodeToString([]byte(randomText(16))), tokens: map[string]string{},
	}
	for list, token := range like.tokens {
		raw := make([]byte, base64.RawURLEncoding.DecodedLen(len(token)))
		_, _ = rand.Read(raw)
		n.tokens[list] = base64.RawURLEncoding.EncodeToString(raw)
	}
	return n
}

func randomText(n int) string { return strings.ToLower(rand.Text() + rand.Text())[:n] }

// fill sets every field of a request that names something. A field that is not
// known here fails the test: somebody has to say what it names.
func (in *installation) fill(m protoreflect.Message, n *names, with []protoreflect.Name) {
	in.t.Helper()
	list := string(m.Descriptor().Name())
	values := map[protoreflect.Name]any{
		"tenant": n.tenant, "consumer": n.consumer, "name": n.consumer, "event_id": n.event, "event_id_prefix": n.prefix, "prefix": n.consumer[:3],
		"attempt_id": n.attempt, "fence": n.fence, "expected_fence": n.fence, "id": n.key, "page_token": n.tokens[list],
		"reason": "r", "change_id": "", "new_name": "", "note": "", "environment": "", "assignee": "", "consumer_prefix": "",
		"content_type": "", "scheme": "s", "expected_version": int64(1), "expected_id": int64(4), "scopes": "claim",
	}
	if list == "UpdateFindingRequest" {
		values["id"] = n.finding
	}
	if strings.HasSuffix(string(m.Descriptor().FullName()), "TenantRequest") {
		values["name"] = n.tenant
	}
	for _, name := range []protoreflect.Name{"tenant", "page_token"} {
		if !slices.Contains(with, name) {
			values[name] = "" // the intruder's own, from the beginning
		}
	}
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		value, known := values[f.Name()]
		switch {
		case f.IsMap() || f.Kind() == protoreflect.BoolKind || f.Kind() == protoreflect.Uint32Kind:
		case f.Kind() == protoreflect.BytesKind:
			m.Set(f, protoreflect.ValueOfBytes(bytes.Repeat([]byte{1}, 32)))
		case f.Kind() == protoreflect.EnumKind && f.IsList():
			m.Mutable(f).List().Append(protoreflect.ValueOfEnum(2))
		case f.Kind() == protoreflect.EnumKind:
			m.Set(f, protoreflect.ValueOfEnum(2))
		case f.Kind() == protoreflect.MessageKind && f.IsList():
			list := m.Mutable(f).List()
			element := list.AppendMutable()
			in.fill(element.Message(), n, with)
		case f.Kind() == protoreflect.MessageKind && strings.HasPrefix(string(f.Message().FullName()), "google."):
		case f.Kind() == protoreflect.MessageKind && f.Name() != "record" && f.Name() != "policy":
			in.fill(m.Mutable(f).Message(), n, with)
		case f.Kind() == protoreflect.MessageKind:
		case f.IsList():
			m.Mutable(f).List().Append(protoreflect.ValueOf(value))
		case f.Kind() == protoreflect.Int64Kind && strings.HasPrefix(string(m.Descriptor().FullName()), "warifu.v1.Quotas"):
		case !known:
			in.t.Fatalf("%s: nobody says what this field names", f.FullName())
		default:
			m.Set(f, protoreflect.ValueOf(value))
		}
	}
	if c := m.Descriptor().Fields().ByName("result_sha256"); c != nil {
		m.Clear(c)
		m.Clear(m.Descriptor().Fields().ByName("result_omitted"))
	}
}

// anew are fields whose values are new in every installation.
var anew = regexp.MustCompile(`"(secret|id|attemptId|changeId|fence|requestId|value|debug)":"[^"]*"`)

// keyIDs stand in audit logs, as who did it and to what.
var keyIDs = regexp.MustCompile(`\b[0-9a-hjkmnp-tv-z]{16}\b`)

// hide takes what was sent, and what is random, out of a reply.
func (n *names) hide(t *testing.T, body string) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, []byte(body)); err != nil {
		t.Fatalf("%q: %v", body, err)
	}
	out := b.String()
	for i, text := range []string{n.consumer, n.event, n.attempt, n.key, n.finding, n.tenant, n.prefix, fmt.Sprint(n.fence)} {
		out = strings.ReplaceAll(out, text, fmt.Sprintf("(%d)", i))
	}
	return keyIDs.ReplaceAllString(anew.ReplaceAllString(out, `"$1":"*"`), "(key)")
}
