package reliability_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectproto"
	"github.com/google/uuid"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/journal"
)

// The consumers of a server whose store goes away.
const (
	opens  = "opens"
	closes = "closes"
)

// journaledHost is a server on a database, with the smallest journal there is.
func journaledHost(t *testing.T, store string) *host {
	t.Helper()
	c := newCredential()
	h := &host{t: t, dir: t.TempDir(), key: c.text}
	config := fmt.Sprintf(`listen: 127.0.0.1:0
metrics_listen: 127.0.0.1:0
store: %q
store_timeout: 250ms
journal: %s
journal_size: 4MiB
log_level: info
log_format: json
drain_delay: 0s
tenants:
  - id: 1
    name: shop
    strict: true
    keys: [{id: "%s", secret_sha256: "%s"}]
    consumers:
      - {name: %s, redelivery_window: 4h, on_unavailable: FAIL_OPEN}
      - {name: %s, redelivery_window: 4h, on_unavailable: FAIL_CLOSED}
`, store, h.journal(), c.key.ID, hex.EncodeToString(c.key.SecretSHA256[:]), opens, closes)
	if err := os.WriteFile(h.config(), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *host) journal() string { return filepath.Join(h.dir, "journal") }

// errorInfo takes the product's detail out of an error, and how long the standard
// one says to wait; nil and 0 where there is none.
func errorInfo(err error) (found *warifuv1.ErrorInfo, wait time.Duration) {
	var wire *connect.Error
	if !errors.As(err, &wire) {
		return nil, 0
	}
	for _, d := range wire.Details() {
		m, err := connectproto.UnmarshalErrorDetail(d)
		if err != nil {
			continue
		}
		switch m := m.(type) {
		case *warifuv1.ErrorInfo:
			found = m
		case *errdetails.RetryInfo:
			wait = m.GetRetryDelay().AsDuration()
		}
	}
	return found, wait
}

func reasonOf(err error) warifuv1.Reason {
	found, _ := errorInfo(err)
	return found.GetReason()
}

// unprotected are the runs that were answered so.
type unprotected struct {
	sync.Mutex
	runs map[string]string // attempts by event
}

// TestStoreIsAway: without a store a consumer that is FAIL_OPEN works on, and each
// of its unprotected runs is in the journal before it is answered: a kill -9 loses
// none of them. One that is FAIL_CLOSED is told when to come back, and so are both
// when the journal is full. When the store is back, so is protection.
func TestStoreIsAway(t *testing.T) {
	t.Parallel()
	c := newDatabase(t)
	h := journaledHost(t, c.url)
	server := h.start()
	m := server.team(keyOf(h.key))
	kept, err := m.claim(opens)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.database.Kill(); err != nil {
		t.Fatal(err)
	}
	answered := &unprotected{runs: map[string]string{}}
	var clients sync.WaitGroup
	for range fleetClients {
		clients.Go(func() {
			for range times(10) {
				m.open(t, answered)
				m.closed(t, closes)
			}
		})
	}
	clients.Wait()
	if _, err := m.Complete(t.Context(), kept.complete()); err == nil || connect.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("a completion without a store: %v", err)
	}
	server.kill()
	server.mustBeKilled()
	answered.mustBeIn(t, h.journal())

	if err := c.database.Start(); err != nil {
		t.Fatal(err)
	}
	server = h.start()
	m = server.team(keyOf(h.key))
	within(t, time.Now(), "the store is back, and protects", func() bool {
		_, err := m.claim(opens)
		return err == nil
	})
	if err := c.database.Kill(); err != nil {
		t.Fatal(err)
	}
	m.fill(t, answered, strings.Repeat("x", 400))
	m.fill(t, answered, "")
	m.closed(t, opens)
	server.kill()
	answered.mustBeIn(t, h.journal())
}

// ask claims until the server is not too busy to answer. It is soon: each call
// waits for the store, and the server lets few do so while it is slow.
func (m *team) ask(t *testing.T, o op) (*warifuv1.ClaimResponse, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		res, err := m.Claim(ctx, &warifuv1.ClaimRequest{Consumer: o.consumer, EventId: o.event, AttemptId: o.attempt})
		if found, wait := errorInfo(err); found.GetReason() != warifuv1.Reason_REASON_OVERLOADED {
			return res, err
		} else if !found.GetNotApplied() || wait <= 0 {
			return res, fmt.Errorf("a busy server says too little: %w", err)
		}
	}
}

// open demands an unprotected answer.
func (m *team) open(t *testing.T, answered *unprotected) {
	t.Helper()
	o := op{consumer: opens, event: uuid.NewString(), attempt: uuid.NewString()}
	res, err := m.ask(t, o)
	if err != nil || res.GetDecision() != warifuv1.Decision_DECISION_UNPROTECTED || res.GetGrant() != nil {
		t.Errorf("FAIL_OPEN without a store: %v, %v", res, err)
		return
	}
	answered.Lock()
	defer answered.Unlock()
	answered.runs[o.event] = o.attempt
}

// closed demands a refusal that says when to come back.
func (m *team) closed(t *testing.T, consumer string) {
	t.Helper()
	res, err := m.ask(t, op{consumer: consumer, event: uuid.NewString(), attempt: uuid.NewString()})
	found, wait := errorInfo(err)
	if connect.CodeOf(err) != connect.CodeUnavailable || found.GetRetryAfter().AsDuration() <= 0 || wait <= 0 {
		t.Errorf("%s without a store: %v, %v, retry in %v", consumer, res, err, wait)
	}
}

// fill sends batches, and smaller ones when those find no room, until the journal
// has none for a single run. Their names end in the suffix.
func (m *team) fill(t *testing.T, answered *unprotected, suffix string) {
	t.Helper()
	const batchesMax = 100
	items := 500
	for range batchesMax {
		batch := &warifuv1.BatchClaimRequest{}
		for range items {
			batch.Items = append(batch.Items, &warifuv1.ClaimRequest{Consumer: opens, EventId: uuid.NewString() + suffix, AttemptId: uuid.NewString()})
		}
		res, err := m.BatchClaim(t.Context(), batch)
		if err != nil {
			t.Fatal(err)
		}
		refused := 0
		for i, r := range res.GetResults() {
			switch e := r.GetError(); {
			case e == nil && r.GetClaim().GetDecision() == warifuv1.Decision_DECISION_UNPROTECTED:
				answered.runs[batch.GetItems()[i].GetEventId()] = batch.GetItems()[i].GetAttemptId()
			case e != nil && e.GetInfo().GetRetryAfter().AsDuration() > 0:
				refused++
			default:
				t.Fatalf("item %d: %v", i, r)
			}
		}
		if refused > 0 && items == 1 {
			t.Logf("the journal was full after %d runs", len(answered.runs))
			return
		}
		if refused > 0 {
			items = max(1, items/2)
		}
	}
	t.Fatal("the journal does not fill")
}

// mustBeIn demands each of the runs in the journal of a server that was killed.
func (u *unprotected) mustBeIn(t *testing.T, dir string) {
	t.Helper()
	j, err := journal.New(journal.Config{Dir: dir, Clock: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	}()
	found := map[string]string{}
	for r, err := range j.All(0) {
		if err != nil {
			t.Fatal(err)
		}
		if r.Key.Consumer != opens || r.Key.Tenant != 1 {
			t.Errorf("the journal has a run of %+v", r.Key)
		}
		found[r.Key.EventID] = uuid.UUID(r.Attempt).String()
	}
	missing := 0
	for event, attempt := range u.runs {
		if found[event] != attempt {
			missing++
		}
	}
	if missing > 0 || len(u.runs) == 0 {
		t.Errorf("of %d runs that were answered %d are not in the journal of %d", len(u.runs), missing, len(found))
	}
	t.Logf("%d runs were answered; the journal has %d", len(u.runs), len(found))
}
