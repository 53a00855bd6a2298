package sqlstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storagetest"
)

// TestForgetMeetsResend holds a Forget open between its statements and its
// commit, and has the completion sent again meanwhile: no body is left of a
// record that is forgotten.
func TestForgetMeetsResend(t *testing.T) {
	t.Parallel()
	url := cleanSchema(t)
	s := open(t, url, nil, time.Hour, nil)
	claimed()(t.Context(), t, s, nil)
	ts := owner(claim.Complete, records(t, s)[0], large())
	must(t.Context(), t, s, ts, storage.Store.Transition)

	forget, watch := newSession(t, url), newSession(t, url)
	forget.run("BEGIN",
		`UPDATE claims SET version = version + 1, state = 5, outcome = 0, content_type = NULL, metadata = NULL,
			result_sum = NULL, result = NULL, aside_bytes = 0 WHERE aside_bytes > 0`,
		"DELETE FROM claim_results")
	done := make(chan error, 1)
	go func() {
		_, err := s.Transition(context.WithoutCancel(t.Context()), ts)
		done <- err
	}()
	// Either the resend has nothing to wait for, or it waits for the Forget.
	answered := false
	eventually(t, "the resend ends or waits", func() bool {
		select {
		case err := <-done:
			if answered = true; err != nil {
				t.Errorf("resend: %v", err)
			}
		default:
		}
		return answered || watch.waiting(forget) > 0
	})
	forget.run("COMMIT")
	if !answered {
		if err := <-done; err != nil {
			t.Errorf("resend: %v", err)
		}
	}
	if state := records(t, s)[0].State; state != claim.Forgotten {
		t.Errorf("the record is %v", state)
	}
	if n := watch.number("SELECT count(*) FROM claim_results"); n != 0 {
		t.Errorf("%d bodies are left of what was forgotten", n)
	}
}

// TestLostBody: a result that is gone for good is damage of that item, however
// it is asked for, and of no other.
func TestLostBody(t *testing.T) {
	t.Parallel()
	url := cleanSchema(t)
	s := open(t, url, nil, time.Hour, nil)
	must(t.Context(), t, s, []claim.Request{
		matrixRequest(matrixKeys[0], 1, shot(large())), matrixRequest(matrixKeys[1], 1, shot(large())), matrixRequest(matrixKeys[2], 1, shot(small())),
	}, storage.Store.InsertOrGet)
	newSession(t, url).run(fmt.Sprintf("DELETE FROM claim_results WHERE event_id = '%s'", matrixKeys[0].EventID))
	for name, call := range map[string]func() ([]storage.Found, error){
		"get": func() ([]storage.Found, error) { return s.Get(t.Context(), matrixKeys) },
		"insert": func() ([]storage.Found, error) {
			var reqs []claim.Request
			for _, k := range matrixKeys {
				reqs = append(reqs, matrixRequest(k, 2))
			}
			return s.InsertOrGet(t.Context(), reqs)
		},
	} {
		found, err := call()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !errors.Is(found[0].Err, storage.ErrDamaged) {
			t.Errorf("%s: a lost result is answered %v, want %v", name, found[0].Err, storage.ErrDamaged)
		}
		for i, want := range []*claim.Completion{1: large(), 2: small()} {
			if i > 0 && (found[i].Err != nil || !bytes.Equal(found[i].Record.Completion.Body, want.Body)) {
				t.Errorf("%s, item %d: %+v", name, i, found[i])
			}
		}
	}
}

const (
	budgetKeys  = 40
	budgetBody  = 512 << 10
	budgetBytes = 16 << 20 // as in get.go
)

// TestBodyBudget: one call returns so many bytes of results and no more. What
// is beyond that is completed all the same, and says what is missing.
func TestBodyBudget(t *testing.T) {
	t.Parallel()
	s := open(t, cleanSchema(t), nil, time.Hour, nil)
	var ids []claim.Key
	done := map[claim.Key]claim.Completion{}
	for i := range budgetKeys {
		k := claim.Key{Tenant: 1, Consumer: "budget", EventID: fmt.Sprint(i)}
		c := claim.Completion{Outcome: claim.Succeeded, ContentType: "text/plain", Body: bytes.Repeat([]byte{byte(i)}, budgetBody)}.Summed()
		must(t.Context(), t, s, []claim.Request{matrixRequest(k, 1, shot(&c))}, storage.Store.InsertOrGet)
		ids, done[k] = append(ids, k), c
	}
	found, err := s.Get(t.Context(), ids)
	if err != nil {
		t.Fatal(err)
	}
	total, omitted := 0, 0
	for i := range found {
		c, want := found[i].Record.Completion, done[ids[i]]
		if found[i].Err != nil || c == nil || found[i].Record.State != claim.Completed || !c.Same(&want) {
			t.Fatalf("item %d: state %v, error %v", i, found[i].Record.State, found[i].Err)
		}
		total += len(c.Body)
		switch {
		case len(c.Body) == 0 && c.Omitted == claim.BatchBudget:
			omitted++
		case c.Omitted != claim.NotOmitted || !bytes.Equal(c.Body, want.Body):
			t.Errorf("item %d: %d bytes, omitted because of %d", i, len(c.Body), c.Omitted)
		}
	}
	if total != budgetBytes || omitted != budgetKeys-budgetBytes/budgetBody {
		t.Errorf("%d bytes in one answer and %d results omitted, want %d and %d", total, omitted, budgetBytes, budgetKeys-budgetBytes/budgetBody)
	}
	if alone, err := s.Get(t.Context(), ids[:budgetBytes/budgetBody]); err != nil || anyOmitted(alone) {
		t.Errorf("what fits exactly is not whole (%v)", err)
	}
}

func anyOmitted(found []storage.Found) bool {
	for i := range found {
		if c := found[i].Record.Completion; c == nil || c.Omitted != claim.NotOmitted || len(c.Body) == 0 {
			return true
		}
	}
	return false
}

// TestNoOutcome: what has no outcome is not complete, whoever says so. Stored,
// it would be damage.
func TestNoOutcome(t *testing.T) {
	t.Parallel()
	s := open(t, cleanSchema(t), nil, time.Hour, nil)
	claimed()(t.Context(), t, s, nil)
	before := records(t, s)
	for name, c := range map[string]*claim.Completion{"none": nil, "empty": {}, "a body alone": {Body: []byte("x")}} {
		if found, err := s.Transition(t.Context(), owner(claim.Complete, before[0], c)); err == nil {
			t.Errorf("complete with %s: %+v", name, found)
		}
	}
	// In doubt, an operator may complete it.
	doubt := matrixRequest(claim.Key{Tenant: 1, Consumer: "c", EventID: "b"}, 1, held)
	doubt.Lease = time.Microsecond
	must(t.Context(), t, s, []claim.Request{doubt}, storage.Store.InsertOrGet)
	before = records(t, s)
	for name, c := range map[string]*claim.Completion{"none": nil, "empty": {}} {
		sw := claim.NewSwap(claim.ResolveComplete, &before[1], nil)
		sw.Result = c
		if found, err := s.Replace(t.Context(), []claim.Swap{sw}); err == nil && found[0].Applied {
			t.Errorf("resolve with %s: %+v", name, found)
		}
	}
	after := records(t, s)
	for i := range before {
		if !storagetest.SameRecord(before[i], after[i]) {
			t.Errorf("stored is %+v\nand was %+v", after[i], before[i])
		}
	}
}
