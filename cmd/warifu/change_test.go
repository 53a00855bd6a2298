package main

import (
	"strings"
	"testing"

	"connectrpc.com/connect/v2"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

// destructive are commands that have to be confirmed, with the name to type and
// the requests that they send when they are.
var destructive = []struct {
	args, name string
	dry, real  string
}{
	{"tenants suspend shop", "shop", "GetTenant SuspendTenant(dry)", "SuspendTenant"},
	{"tenants delete shop", "shop", "GetTenant DeleteTenant(dry)", "DeleteTenant"},
	{"tenants update shop --name store", "shop", "GetTenant UpdateTenant(dry)", "UpdateTenant"},
	{"tenants update shop --in-doubt-max 4", "shop", "GetTenant UpdateTenant(dry)", "UpdateTenant"},
	{"tenants update shop --live-leases-max 9", "shop", "GetTenant UpdateTenant(dry)", "UpdateTenant"},
	{"consumers delete inventory", "inventory", "GetConsumer DeleteConsumer(dry)", "DeleteConsumer"},
	{"consumers put inventory --keep --retention 8h", "inventory", "GetConsumer PutConsumer(dry)", "PutConsumer"},
	{"consumers put inventory --keep --redelivery-window 1h", "inventory", "GetConsumer PutConsumer(dry)", "PutConsumer"},
	{"consumers put inventory --keep --on-lease-loss REGRANT", "inventory", "GetConsumer PutConsumer(dry)", "PutConsumer"},
	{"consumers put inventory --keep --on-unavailable FAIL_OPEN", "inventory", "GetConsumer PutConsumer(dry)", "PutConsumer"},
	{"keys revoke key2", "key2", "ListKeys RevokeKey(dry)", "RevokeKey"},
	{"keys rotate key2 --overlap 0s", "key2", "ListKeys RotateKey(dry)", "RotateKey"},
	{"results shred --consumer inventory", "inventory", "GetConsumer ShredResults(dry)", "ShredResults"},
	{"results shred --all --tenant shop", "shop", "GetTenant ShredResults(dry)", "ShredResults"},
	{"claims resolve inventory a", "a", "ListClaims", "ResolveClaim"},
	{"claims retry inventory a", "a", "ListClaims", "ResolveClaim"},
	{"claims forget inventory a", "a", "ListClaims", "ForgetClaim"},
	{"claims retry-all inventory --states IN_DOUBT", "inventory", "ResolveClaims(dry)", "ResolveClaims"},
	{"claims forget-all inventory --states IN_DOUBT", "inventory", "ResolveClaims(dry)", "ResolveClaims"},
	{"claims resolve-all inventory --states IN_DOUBT", "inventory", "ResolveClaims(dry)", "ResolveClaims"},
}

// TestDestructiveAsks: nothing is changed before somebody has typed the name or
// said --yes.
func TestDestructiveAsks(t *testing.T) {
	t.Parallel()
	for _, c := range destructive {
		t.Run(c.args, func(t *testing.T) {
			t.Parallel()
			f := furnished(t)
			f.mu.bulk = []*warifuv1.ResolveClaimsResponse{{Matched: 2, Changed: 2}}
			args := append(strings.Fields(c.args), "--reason", "why")
			for _, try := range []struct {
				name string
				run  func() outcome
				code int
				want string
			}{
				{"nobody there", func() outcome { return f.do(args...) }, exitDeclined, c.dry},
				{"another name", func() outcome { return f.typing("yes\n", args...) }, exitDeclined, c.dry},
				{"nothing typed", func() outcome { return f.typing("\n", args...) }, exitDeclined, c.dry},
				{"end of input", func() outcome { return f.typing("", args...) }, exitDeclined, c.dry},
				{"dry run", func() outcome { return f.do(append(args, "--dry-run")...) }, exitOK, c.dry},
				{"dry run, yes", func() outcome { return f.do(append(args, "--dry-run", "--yes")...) }, exitOK, c.dry},
				{"the name", func() outcome { return f.typing(c.name+"\n", args...) }, exitOK, c.dry + " " + c.real},
			} {
				got := try.run()
				if asked := f.methods(); got.code != try.code || asked != try.want {
					t.Errorf("%s: code %d after %q, want %d after %q\n%s", try.name, got.code, asked, try.code, try.want, got.stderr)
				}
			}
			f = furnished(t)
			f.mu.bulk = []*warifuv1.ResolveClaimsResponse{{Matched: 2, Changed: 2}}
			f.do(append(args, "-y")...).want(t, exitOK, "", "")
			if asked := f.methods(); asked != c.dry+" "+c.real {
				t.Errorf("--yes: %s", asked)
			}
		})
	}
}

// TestHarmlessDoesNotAsk: what takes nothing from anybody is made at once.
func TestHarmlessDoesNotAsk(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"tenants resume shop":                            "GetTenant ResumeTenant",
		"tenants update shop --note new":                 "GetTenant UpdateTenant",
		"tenants update shop --retained-keys-max 2000":   "GetTenant UpdateTenant",
		"tenants create paper":                           "CreateTenant",
		"consumers put inventory --keep --retention 9d":  "GetConsumer PutConsumer",
		"consumers put paper --on-unavailable FAIL_OPEN": "GetConsumer PutConsumer",
		"keys create --scope read":                       "CreateKey",
		"keys rotate key2":                               "ListKeys RotateKey",
		"findings resolve f1":                            "ListFindings UpdateFinding",
		"data-keys rotate":                               "RotateDataKey",
	} {
		f := furnished(t)
		got := f.do(append(strings.Fields(args), "--reason", "why")...)
		if asked := f.methods(); got.code != exitOK || asked != want {
			t.Errorf("%s: code %d after %q, want %q\n%s", args, got.code, asked, want, got.stderr)
		}
	}
}

// TestConsequenceIsShown: counts and notes, before the question.
func TestConsequenceIsShown(t *testing.T) {
	t.Parallel()
	f := furnished(t)
	got := f.typing("no\n", "tenants", "delete", "shop", "--reason", "why")
	before, _, asked := strings.Cut(got.stderr, "Type shop to go on: ")
	if !asked || !strings.Contains(before, "42 retained keys, 3 live leases, 1 in doubt") || !strings.Contains(before, "a note of the server") {
		t.Errorf("%+v", got)
	}
}

// TestReasonIsAskedFor at a terminal, and goes out as it was typed.
func TestReasonIsAskedFor(t *testing.T) {
	t.Parallel()
	f := furnished(t)
	f.typing("  they left \nshop\n", "tenants", "delete", "shop").want(t, exitOK, "DELETING", "Why?")
	all := f.got()
	if reason := changeIn(all[len(all)-1].message).GetReason(); reason != "they left" {
		t.Errorf("reason %q", reason)
	}
	f.typing("\n", "tenants", "resume", "shop").want(t, exitUsage, "", "--reason")
}

// TestExpectedVersion: what was looked at is what is changed.
func TestExpectedVersion(t *testing.T) {
	t.Parallel()
	f := furnished(t)
	f.do("tenants", "delete", "shop", "--reason", "r", "--yes", "--expected-version", "3").want(t, exitConflict, "", "CONFLICT")
	if asked := f.methods(); asked != "GetTenant DeleteTenant(dry)" { // its number has to be known
		t.Errorf("%s was asked", asked)
	}
	f.do("claims", "retry", "inventory", "a", "--reason", "r", "--yes", "--expected-fence", "76").want(t, exitConflict, "", "fence 77, not 76")
	if asked := f.methods(); asked != "ListClaims" {
		t.Errorf("%s was asked", asked)
	}
}

// TestChangeIsSentAgain: with one ID, so that it is one change, and not without
// bound.
func TestChangeIsSentAgain(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	f.fail("CreateTenant", lost(), lost())
	f.do("tenants", "create", "paper", "--reason", "r").want(t, exitOK, "paper", "")
	ids := map[string]int{}
	for _, r := range f.got() {
		ids[changeIn(r.message).GetChangeId()]++
	}
	if len(ids) != 1 || ids[""] != 0 {
		t.Errorf("change IDs: %v", ids)
	}
	f.fail("CreateTenant", lost(), lost(), lost(), lost())
	got := f.do("tenants", "create", "ink", "--reason", "r")
	sent := f.got()
	got.want(t, exitUnavailable, "", "--change-id "+changeIn(sent[0].message).GetChangeId())
	if len(sent) != callTriesMax {
		t.Errorf("%d tries, want %d", len(sent), callTriesMax)
	}
}

// TestNotApplied: when a server says that nothing was changed, nobody is sent to
// look for it.
func TestNotApplied(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	full := refusal(warifuv1.Reason_REASON_QUOTA_EXCEEDED)
	f.fail("CreateTenant", full)
	got := f.do("tenants", "create", "paper", "--reason", "r")
	got.want(t, exitQuota, "", "QUOTA")
	if strings.Contains(got.stderr, "--change-id") {
		t.Errorf("%q", got.stderr)
	}
	if asked := f.methods(); asked != "CreateTenant" {
		t.Errorf("a refusal was sent again: %s", asked)
	}
}

// TestAdminExitCodes: each reason has its code.
func TestAdminExitCodes(t *testing.T) {
	t.Parallel()
	for reason, code := range map[warifuv1.Reason]int{
		warifuv1.Reason_REASON_INVALID_FIELD: exitUsage, warifuv1.Reason_REASON_UNAUTHENTICATED: exitDenied,
		warifuv1.Reason_REASON_PERMISSION_DENIED: exitDenied, warifuv1.Reason_REASON_UNKNOWN_CONSUMER: exitUsage,
		warifuv1.Reason_REASON_NOT_FOUND: exitNotFound, warifuv1.Reason_REASON_ALREADY_EXISTS: exitConflict,
		warifuv1.Reason_REASON_CONFLICT: exitConflict, warifuv1.Reason_REASON_PRECONDITION: exitPrecondition,
		warifuv1.Reason_REASON_TENANT_SUSPENDED: exitPrecondition, warifuv1.Reason_REASON_QUOTA_EXCEEDED: exitQuota,
		warifuv1.Reason_REASON_INVALID_PAGE_TOKEN: exitUsage, warifuv1.Reason_REASON_INTERNAL: exitFailed,
		warifuv1.Reason_REASON_STORE_FULL: exitUnavailable, warifuv1.Reason_REASON_CLOCK_SUSPECT: exitUnavailable,
	} {
		client := clientFlags{sys: &system{environ: []string{"WARIFU_URL=http://x"}}}
		if got := exitCodeOf(client.failedCall(refusal(reason))); got != code {
			t.Errorf("%s: %d, want %d", reason, got, code)
		}
	}
	if got := exitCodeOf((&clientFlags{sys: &system{}}).failedCall(connect.NewError(connect.CodeUnimplemented, "no"))); got != exitFailed {
		t.Errorf("another code: %d", got)
	}
}

// TestBulkPages: counted over all pages first, then done page by page.
func TestBulkPages(t *testing.T) {
	t.Parallel()
	f := furnished(t)
	f.mu.bulk = []*warifuv1.ResolveClaimsResponse{{Matched: 2, Changed: 2}, {}, {Matched: 3, Changed: 2, MovedOn: 1}}
	got := f.do("claims", "retry-all", "inventory", "--states", "IN_DOUBT", "--reason", "r", "--yes", "-o", "json")
	got.want(t, exitConflict, `"changed": 4`, "1 claims moved on")
	if !strings.Contains(got.stderr, "5 claims of inventory match") {
		t.Errorf("%q", got.stderr)
	}
	if asked := f.methods(); asked != strings.Repeat("ResolveClaims(dry) ", 3)+"ResolveClaims ResolveClaims ResolveClaims" {
		t.Error(asked)
	}
}

// TestBulkIsNotSentTwice: it has no ID, so that only what was surely not applied
// goes out again.
func TestBulkIsNotSentTwice(t *testing.T) {
	t.Parallel()
	f := furnished(t)
	f.mu.bulk = []*warifuv1.ResolveClaimsResponse{{Matched: 2, Changed: 2}}
	f.fail("ResolveClaims", nil, lost())
	args := []string{"claims", "retry-all", "inventory", "--states", "IN_DOUBT", "--reason", "r", "--yes"}
	f.do(args...).want(t, exitUnavailable, "", "run it again")
	if asked := f.methods(); asked != "ResolveClaims(dry) ResolveClaims" {
		t.Error(asked)
	}
	f.fail("ResolveClaims", nil, refusal(warifuv1.Reason_REASON_STORE_UNAVAILABLE))
	f.do(args...).want(t, exitOK, "", "")
	if asked := f.methods(); asked != "ResolveClaims(dry) ResolveClaims ResolveClaims" {
		t.Error(asked)
	}
}
