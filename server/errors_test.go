package server

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect/v2"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	adminapi "github.com/warifu/warifu/server/admin"
	"github.com/warifu/warifu/server/arbiter"
	"github.com/warifu/warifu/server/fault"
	"github.com/warifu/warifu/server/interceptor"
	"github.com/warifu/warifu/server/journal"
	"github.com/warifu/warifu/server/quota"
	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// sentinels are all exported ones of the packages that the server calls;
// TestEverySentinel reads the sources to see that none is missing.
var sentinels = map[string]error{
	"storage.ErrUnavailable": storage.ErrUnavailable, "storage.ErrUnknown": storage.ErrUnknown,
	"storage.ErrFull": storage.ErrFull, "storage.ErrClockSuspect": storage.ErrClockSuspect,
	"storage.ErrDamaged": storage.ErrDamaged, "storage.ErrClosed": storage.ErrClosed,
	"storage.ErrRepeatedKey": storage.ErrRepeatedKey, "storage.ErrBatchTooLarge": storage.ErrBatchTooLarge,
	"storage.ErrCursor":     storage.ErrCursor,
	"arbiter.ErrOverloaded": arbiter.ErrOverloaded, "arbiter.ErrNotSent": arbiter.ErrNotSent,
	"tenant.ErrUnknownConsumer": tenant.ErrUnknownConsumer, "tenant.ErrFaultyConsumer": tenant.ErrFaultyConsumer,
}

// notOfCalls are sentinels that no call meets: they are for who starts a server.
var notOfCalls = map[string]bool{"tenant.ErrNotLoaded": true, "tenant.ErrStopped": true}

func TestEverySentinel(t *testing.T) {
	t.Parallel()
	found := 0
	for pkg, dir := range map[string]string{"storage": "../storage", "arbiter": "arbiter", "tenant": "tenant"} {
		for _, name := range exportedErrors(t, dir) {
			if notOfCalls[pkg+"."+name] {
				continue
			}
			found++
			if sentinels[pkg+"."+name] == nil {
				t.Errorf("%s.%s has no row in errors.go and is not in this test", pkg, name)
			}
		}
	}
	if found != len(sentinels) {
		t.Errorf("%d sentinels in the sources, %d here", found, len(sentinels))
	}
	for name, sentinel := range sentinels {
		r, ok := errorRow(fmt.Errorf("some action: %w", sentinel))
		if !ok || !errors.Is(sentinel, r.sentinel) || r.message == "" {
			t.Errorf("%s has no row of its own", name)
		}
	}
}

// exportedErrors lists the variables named Err… of the package in dir.
func exportedErrors(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %v, %d files", dir, err, len(files))
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, src, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range parsed.Decls {
			gen, ok := decl.(*ast.GenDecl)
			if !ok || gen.Tok != token.VAR {
				continue
			}
			for _, spec := range gen.Specs {
				if v, ok := spec.(*ast.ValueSpec); ok && strings.HasPrefix(v.Names[0].Name, "Err") {
					names = append(names, v.Names[0].Name)
				}
			}
		}
	}
	return names
}

// madeElsewhere says who makes the reasons that no sentinel leads to.
var madeElsewhere = map[warifuv1.Reason]error{
	warifuv1.Reason_REASON_UNSPECIFIED:       fault.Of(connect.NewError(connect.CodeUnimplemented, "unknown")),
	warifuv1.Reason_REASON_INVALID_FIELD:     fault.Invalid("field", "limit"),
	warifuv1.Reason_REASON_UNAUTHENTICATED:   nil, // interceptor.Authenticate: TestUnauthenticated
	warifuv1.Reason_REASON_PERMISSION_DENIED: nil, // interceptor.Authenticate: TestScopes
	warifuv1.Reason_REASON_ATTEMPT_ENDED:     errAttemptEnded,
	warifuv1.Reason_REASON_RESTORED:          nil, // no driver can restore yet
	warifuv1.Reason_REASON_TENANT_SUSPENDED:  nil, // interceptor.Authenticate: TestOperatorsDay
	warifuv1.Reason_REASON_QUOTA_EXCEEDED:    interceptor.QuotaFault(quota.ShareExceeded()),
	warifuv1.Reason_REASON_NOT_FOUND:         adminapi.ErrNoTenant,
	warifuv1.Reason_REASON_ALREADY_EXISTS:    nil, // package admin: TestChangeIsMadeOnce
	warifuv1.Reason_REASON_CONFLICT:          movedOn(&storage.Found{Record: claim.Record{State: claim.Released, ExpiresAt: claim.Never}}),
}

// TestEveryReason: each reason is made by a sentinel or by somebody who is
// named, and each has a code of its own.
func TestEveryReason(t *testing.T) {
	t.Parallel()
	made := map[warifuv1.Reason]bool{}
	for _, r := range rows {
		made[r.reason] = true
		f := writeFault(fmt.Errorf("some action: %w", r.sentinel))
		if f.Reason != r.reason || !errors.Is(f, r.sentinel) {
			t.Errorf("%v became %v", r.sentinel, f.Reason)
		}
	}
	for number, name := range warifuv1.Reason_name {
		reason := warifuv1.Reason(number)
		other, elsewhere := madeElsewhere[reason]
		if made[reason] == elsewhere {
			t.Errorf("%s is made by a sentinel: %v, by somebody else: %v", name, made[reason], elsewhere)
		}
		if other != nil && fault.Of(other).Reason != reason {
			t.Errorf("%s: made elsewhere as %v", name, fault.Of(other).Reason)
		}
		f := fault.New(reason, "text")
		if f.Code() == 0 || f.Code() == connect.CodeUnknown {
			t.Errorf("%s has code %v", name, f.Code())
		}
		again := f.Code() == connect.CodeUnavailable || f.Code() == connect.CodeResourceExhausted
		if (f.RetryAfter() > 0) != again {
			t.Errorf("%s: code %v, retry_after %v", name, f.Code(), f.RetryAfter())
		}
	}
}

// TestNotApplied: only these leave open whether something was applied. The
// promise of all others is theirs to keep: whoever adds a reason decides here.
func TestNotApplied(t *testing.T) {
	t.Parallel()
	open := map[warifuv1.Reason]bool{warifuv1.Reason_REASON_OUTCOME_UNKNOWN: true, warifuv1.Reason_REASON_INTERNAL: true}
	for number, name := range warifuv1.Reason_name {
		reason := warifuv1.Reason(number)
		if fault.New(reason, "").NotApplied() == open[reason] {
			t.Errorf("%s: not applied = %v", name, !open[reason])
		}
	}
	// Unknown wins over whatever it wraps: their promise does not hold then.
	for _, other := range []error{context.Canceled, context.DeadlineExceeded, storage.ErrUnavailable, storage.ErrClosed} {
		if f := writeFault(fmt.Errorf("%w (%w)", storage.ErrUnknown, other)); f.NotApplied() {
			t.Errorf("unknown that wraps %v promises that nothing was applied", other)
		}
	}
	if f := writeFault(errors.New("never seen before")); f.Reason != warifuv1.Reason_REASON_INTERNAL || f.NotApplied() {
		t.Errorf("an unclassified error became %v", f)
	}
	if f := interceptor.Ended(context.DeadlineExceeded); f.Reason != warifuv1.Reason_REASON_DEADLINE_EXCEEDED || !f.NotApplied() {
		t.Errorf("an ended deadline became %v", f)
	}
}

// TestOverloadIsNoOutage: what asks the caller to come back never becomes
// UNPROTECTED.
func TestOverloadIsNoOutage(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		arbiter.ErrOverloaded, arbiter.ErrNotSent, storage.ErrClosed, storage.ErrRepeatedKey, storage.ErrCursor,
		context.Canceled, context.DeadlineExceeded, tenant.ErrUnknownConsumer, errors.New("never seen before"),
	} {
		if unanswered(fmt.Errorf("some action: %w", err)) {
			t.Errorf("%v would fail open", err)
		}
	}
}

// TestGoneCallerFailsClosed: UNPROTECTED is only for somebody who hears it.
func TestGoneCallerFailsClosed(t *testing.T) {
	t.Parallel()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	j, err := journal.New(journal.Config{Dir: filepath.Join(t.TempDir(), "journal"), Clock: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	}()
	call := &interceptor.Call{Principal: &tenant.Principal{KeyID: "k"}, RequestID: "r"}
	ask := func(ctx context.Context, j *journal.Journal) arbiter.Answered {
		s := &Server{journal: j}
		e := &edge{name: "c", consumer: &tenant.Consumer{OnUnavailable: tenant.FailOpen}}
		rs := []claim.Request{{Key: claim.Key{Tenant: 1, Consumer: "c", EventID: "e"}, Attempt: claim.AttemptID{1}}}
		as := []arbiter.Answered{{Err: storage.ErrUnknown}}
		s.protect(ctx, e, call, rs, as)
		return as[0]
	}
	if a := ask(gone, j); a.Err == nil {
		t.Error("a caller who is gone is unprotected")
	}
	if a := ask(t.Context(), nil); a.Err == nil || writeFault(a.Err).Reason != warifuv1.Reason_REASON_OUTCOME_UNKNOWN {
		t.Errorf("without a journal: %+v", a)
	}
	if a := ask(t.Context(), j); a.Err != nil || a.Decision != claim.Unprotected {
		t.Errorf("a caller who is there: %+v", a)
	}
	entries := 0
	for r, err := range j.All(0) {
		if entries++; err != nil || r.Key.EventID != "e" || r.RequestID != "r" || r.KeyID != "k" {
			t.Errorf("the journal has %+v, %v", r, err)
		}
	}
	if entries != 1 {
		t.Errorf("the journal has %d entries", entries)
	}
}

// TestWords: every word of package claim has one on the wire, and no two the
// same.
func TestWords(t *testing.T) {
	t.Parallel()
	check := func(what string, wire []int32, wireNames map[int32]string, skip ...int32) {
		t.Helper()
		seen := map[int32]bool{}
		for _, w := range wire {
			if seen[w] && w != 0 {
				t.Errorf("%s: %s twice", what, wireNames[w])
			}
			seen[w] = true
		}
		for _, s := range skip {
			seen[s] = true
		}
		for number, name := range wireNames {
			if !seen[number] {
				t.Errorf("%s: nothing is %s", what, name)
			}
		}
	}
	check("decision", numbers(decisions[:]), warifuv1.Decision_name)
	check("takeover", numbers(takeovers[:]), warifuv1.Takeover_name)
	check("state", numbers(states[:]), warifuv1.State_name, 0)
	check("status", numbers(statuses[:]), warifuv1.Status_name)
	check("outcome", numbers(outcomes[:]), warifuv1.Outcome_name)
	check("omission", numbers(omissions[:]), warifuv1.ResultOmitted_name)
}

func numbers[E ~int32](words []E) (out []int32) {
	for _, w := range words {
		out = append(out, int32(w))
	}
	return out
}
