package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/timestamppb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

// many is a fake with more consumers than one page has.
func many(t *testing.T, n int) *fakeAPI {
	t.Helper()
	f := newFakeAPI(t)
	for i := range n {
		name := fmt.Sprintf("c%04d", i)
		f.mu.consumers["/"+name] = &warifuv1.Consumer{Name: name, Version: 1}
	}
	return f
}

func namesIn(t *testing.T, text string) []string {
	t.Helper()
	var rows []struct{ Name string }
	if err := json.Unmarshal([]byte(text), &rows); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	var names []string
	for _, r := range rows {
		names = append(names, r.Name)
	}
	return names
}

// TestListsAll: one array over all pages, each asked for once.
func TestListsAll(t *testing.T) {
	t.Parallel()
	f := many(t, 1203)
	got := namesIn(t, f.do("consumers", "list", "-o", "json").stdout)
	if len(got) != 1203 || got[0] != "c0000" || got[1202] != "c1202" {
		t.Errorf("%d names, from %v", len(got), got[:1])
	}
	if asked := f.methods(); asked != "ListConsumers ListConsumers ListConsumers" {
		t.Error(asked)
	}
	for limit, sizes := range map[int][]uint32{1: {1}, 500: {500}, 501: {500, 1}, 1203: {500, 500, 203}} {
		got := namesIn(t, f.do("consumers", "list", "-o", "json", "--limit", fmt.Sprint(limit)).stdout)
		all := f.got()
		if len(got) != limit || len(all) != len(sizes) {
			t.Errorf("--limit %d: %d names with %d requests", limit, len(got), len(all))
			continue
		}
		for i, r := range all {
			if size := r.message.(*warifuv1.ListConsumersRequest).GetPageSize(); size != sizes[i] {
				t.Errorf("--limit %d: page %d has %d rows, want %d", limit, i, size, sizes[i])
			}
		}
	}
}

// TestListsPage: one page is the API's message, with the token of the next.
func TestListsPage(t *testing.T) {
	t.Parallel()
	f := many(t, 5)
	var page struct {
		Consumers     []struct{ Name string }
		NextPageToken string
	}
	seen := ""
	args := []string{"consumers", "list", "-o", "json", "--page-size", "2"}
	for range 3 {
		page.NextPageToken, page.Consumers = "", nil
		if err := json.Unmarshal([]byte(f.do(args...).stdout), &page); err != nil {
			t.Fatal(err)
		}
		for _, c := range page.Consumers {
			seen += c.Name + " "
		}
		args = []string{"consumers", "list", "-o", "json", "--page-size", "2", "--page-token", page.NextPageToken}
	}
	if seen != "c0000 c0001 c0002 c0003 c0004 " || page.NextPageToken != "" {
		t.Errorf("%q, then %q", seen, page.NextPageToken)
	}
	f.do("consumers", "list", "--page-size", "2").want(t, exitOK, "c0001", "--page-token 2")
	f.do("consumers", "list", "--page-size", "2", "--limit", "2").want(t, exitUsage, "", "none of the others can be")
}

// TestListsNothing is an empty array, not null.
func TestListsNothing(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	for _, args := range []string{"tenants list", "consumers list", "keys list", "audit list", "findings list", "claims list", "context list"} {
		got := f.do(append(strings.Fields(args), "-o", "json")...)
		if got.code != exitOK || got.stdout != "[]\n" {
			t.Errorf("%s: %+v", args, got)
		}
	}
}

// TestListsReadAgain: a list that a failing server broke off is read again, and
// is an error rather than a part when it goes on failing.
func TestListsReadAgain(t *testing.T) {
	t.Parallel()
	f := many(t, 600)
	f.fail("ListConsumers", nil, lost())
	if got := namesIn(t, f.do("consumers", "list", "-o", "json").stdout); len(got) != 600 {
		t.Errorf("%d names", len(got))
	}
	f.fail("ListConsumers", nil, lost(), lost(), lost())
	got := f.do("consumers", "list", "-o", "json")
	if got.code != exitUnavailable || got.stdout != "" {
		t.Errorf("%+v", got)
	}
}

// TestSameTokenForEver: a server that leads in a circle does not keep us there.
func TestSameTokenForEver(t *testing.T) {
	t.Parallel()
	asked := 0
	_, _, err := collect(0, func(uint32, string) (*warifuv1.ListKeysResponse, error) {
		asked++
		return &warifuv1.ListKeysResponse{Keys: []*warifuv1.Key{{}}, NextPageToken: "again"}, nil
	}, (*warifuv1.ListKeysResponse).GetKeys)
	if err == nil || asked != 2 {
		t.Errorf("%v after %d pages", err, asked)
	}
}

// TestAdminTables: what people see; text of others cannot move their cursor.
func TestAdminTables(t *testing.T) {
	t.Parallel()
	f := furnished(t)
	f.mu.entries = []*warifuv1.AuditEntry{{At: timestamppb.New(fakeNow), Actor: "key1", Action: "tenant.suspend", Target: "shop", Reason: "\x1b[2Jgone"}}
	f.mu.keys[0].ExpiresAt, f.mu.keys[1].RevokedAt = timestamppb.New(fakeNow), timestamppb.New(fakeNow)
	for args, want := range map[string][]string{
		"tenants list":            {"ID", "shop", "ACTIVE", "yes"},
		"tenants get shop":        {"retained-keys-max    1000", "live-leases-max", "default", "version"},
		"consumers list":          {"inventory", "4h", "9h", "HOLD", "FAIL_CLOSED"},
		"consumers get inventory": {"redelivery_window        4h", "attempts_max             5", "lease_max                -"},
		"keys list":               {"key1", "expired", "revoked", "shop's"},
		"audit list":              {"2026-11-30T12:00:00Z", "tenant.suspend", `"\x1b[2Jgone"`},
		"usage":                   {"retained_keys", "42", "100", "none", "(others)"},
		"findings list":           {"f1", "ann"},
		"jobs list":               {"tenant.purge", "RUNNING", "5 of 9"},
		"claims list":             {"inventory", "a-1", "IN_DOUBT", "78"},
	} {
		got := f.do(strings.Fields(args)...)
		for _, text := range want {
			if got.code != exitOK || !strings.Contains(got.stdout, text) {
				t.Errorf("%s lacks %q: %+v", args, text, got)
			}
		}
		if strings.Contains(got.stdout, "\x1b") {
			t.Errorf("%s: an escape reaches the terminal: %q", args, got.stdout)
		}
	}
}

// TestAdminYAML has the names of the API.
func TestAdminYAML(t *testing.T) {
	t.Parallel()
	f := furnished(t)
	var row struct {
		Version string `yaml:"version"`
		Policy  struct {
			RedeliveryWindow string `yaml:"redeliveryWindow"`
		} `yaml:"policy"`
	}
	got := f.do("consumers", "get", "inventory", "-o", "yaml")
	if err := yaml.Unmarshal([]byte(got.stdout), &row); err != nil || row.Version != "3" || row.Policy.RedeliveryWindow != "14400s" {
		t.Errorf("%v: %+v of %q", err, row, got.stdout)
	}
}

// TestKeyIsShownOnce: on stdout, and nowhere else; not by a dry run.
func TestKeyIsShownOnce(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	got := f.do("keys", "create", "--scope", "read", "--reason", "r")
	got.want(t, exitOK, "WARIFU_API_KEY=wf_live_key1_secret_sum\n", "")
	if strings.Count(got.stdout, "secret_sum") != 1 || strings.Contains(got.stderr, "secret_sum") {
		t.Errorf("%+v", got)
	}
	got = f.do("keys", "create", "--scope", "read", "--reason", "r", "--dry-run")
	if got.code != exitOK || strings.Contains(got.stdout, "WARIFU_API_KEY") || !strings.Contains(got.stdout, "nothing was made") {
		t.Errorf("%+v", got)
	}
	f.do("keys", "rotate", "none", "--reason", "r").want(t, exitNotFound, "", "no key none")
	f.do("keys", "rotate", "key1", "--reason", "r", "-o", "json").want(t, exitOK, `"secret": "wf_live_key9_secret_sum"`, "")
}

// TestFindClaim: an event ID is not taken for another that begins with it.
func TestFindClaim(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	f.mu.claims = []*warifuv1.ClaimRecord{{Consumer: "c", EventId: "a-1", State: warifuv1.State_STATE_IN_DOUBT, Fence: 1}}
	f.do("claims", "forget", "c", "a", "--reason", "r", "--yes").want(t, exitNotFound, "", "nothing is stored of event a")
	if asked := f.methods(); asked != "ListClaims" {
		t.Error(asked)
	}
}

// TestCompletionOfNames: from the server, and nothing from one that is slow.
func TestCompletionOfNames(t *testing.T) {
	t.Parallel()
	f := furnished(t)
	for args, want := range map[string]string{
		"consumers get ":                      "inventory\n:4\n",
		"consumers get x":                     ":4\n",
		"consumers get inventory ":            ":4\n",
		"tenants suspend ":                    "shop\n:4\n",
		"keys revoke ":                        "key1\nkey2\tshop's\n:4\n",
		"claims retry inv":                    "inventory\n:4\n",
		"claims list --consumer inv":          "inventory\n:4\n",
		"usage --tenant sh":                   "shop\n:4\n",
		"claims retry-all x --states IN_D":    "IN_DOUBT\nCOMPLETED\nFORGOTTEN\n:4\n",
		"consumers put x --on-lease-loss REG": "REGRANT\nHOLD\n:4\n",
	} {
		got := f.do(append([]string{"__complete"}, strings.Split(args, " ")...)...)
		if got.code != exitOK || !strings.HasSuffix(got.stdout, want) {
			t.Errorf("%s: %+v, want %q", args, got, want)
		}
	}
	f.mu.hang = make(chan struct{})
	defer close(f.mu.hang)
	f.do("__complete", "consumers", "get", "--timeout", "10m", "").want(t, exitOK, ":4\n", "")
	f.env = []string{"XDG_CONFIG_HOME=" + f.home} // no key
	f.do("__complete", "tenants", "get", "").want(t, exitOK, ":4\n", "")
}

// TestClaimsHash: HMAC-SHA-256 of the event ID under the key, its first 8 bytes.
// The value was computed with another program.
func TestClaimsHash(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	path := f.keyFile("0123456789abcdef")
	f.do("claims", "hash", "order-1", "--key-file", path).want(t, exitOK, hashOfOrder1+"\n", "")
	f.env = append(f.env, "WARIFU_LOG_HASH_KEY_FILE="+path)
	f.do("claims", "hash", "order-1", "-o", "json").want(t, exitOK, `"hash": "`+hashOfOrder1+`"`, "")
	f.do("claims", "hash", "order-1", "--key-file", f.keyFile("short")).want(t, exitUsage, "", "16 or more")
	f.env = nil
	f.do("claims", "hash", "order-1").want(t, exitUsage, "", "--key-file is missing")
}

const hashOfOrder1 = "b50d76ee9190799b"
