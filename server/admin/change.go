package admin

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/fault"
	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/registry"
	"github.com/warifu/warifu/storage/sealed"
)

const (
	// applyTriesMax bounds how often a change whose outcome is unknown is sent
	// again; applyPause is the first pause between, which doubles.
	applyTriesMax = 4
	applyPause    = 50 * time.Millisecond
)

const (
	limitReason   = "1-1024 bytes: why, for the audit log"
	limitChangeID = "a UUID, or empty"
	limitLook     = "required: the version that was looked at"
)

// why checks what a change says about itself. mustLook: the caller must have
// looked at what it changes.
func why(c *warifuv1.Change, mustLook bool) error {
	if n := len(c.GetReason()); n == 0 || n > registry.TextBytesMax {
		return fault.Invalid("change.reason", limitReason)
	}
	if c.GetExpectedVersion() < 0 || mustLook && c.GetExpectedVersion() == 0 {
		return fault.Invalid("change.expected_version", limitLook)
	}
	if c.GetChangeId() == "" {
		return nil
	}
	if parsed, err := uuid.Parse(c.GetChangeId()); err != nil || parsed == uuid.Nil {
		return fault.Invalid("change.change_id", limitChangeID)
	}
	return nil
}

// changing is a request for a change.
type changing interface {
	proto.Message
	GetChange() *warifuv1.Change
}

// changeID is the registry's name for a change: random where the caller gives
// none, and else made of the caller's, of whom it acts for, and of all that is
// asked for. So the same call that is sent again is one change, and the same ID
// on another call, of this tenant or another, proves nothing.
func (w *acting) changeID(m changing) registry.ID {
	given := m.GetChange().GetChangeId()
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if given == "" || err != nil { // our own message can be marshalled
		return newID()
	}
	h := sha256.New()
	h.Write(fmt.Appendf(nil, "%d %s %s ", w.id(), w.call.Method.Name, given))
	h.Write(body)
	return registry.ID(h.Sum(nil)[:len(registry.ID{})])
}

func newID() (id registry.ID) {
	_, _ = rand.Read(id[:]) // never fails: it ends the process instead
	return id
}

// entry is the audit entry of a change. before and after are what the API
// shows; nil where there was or is nothing.
func (w *acting) entry(action, target string, c *warifuv1.Change, before, after proto.Message) registry.AuditEntry {
	return registry.AuditEntry{
		Tenant: w.id(), Actor: w.call.Principal.KeyID, Action: action, Target: target,
		Reason: c.GetReason(), RequestID: w.call.RequestID, Before: document(before), After: document(after),
	}
}

// document is a message as JSON; nil where it is nil.
func document(m proto.Message) []byte {
	if m == nil || !m.ProtoReflect().IsValid() {
		return nil
	}
	doc, err := protojson.Marshal(m)
	if err != nil { // our own messages are valid
		return nil
	}
	return doc
}

// apply makes a change and has this server know it. A change whose outcome is
// unknown is sent again: its ID makes it one.
func (a *Admin) apply(ctx context.Context, c registry.Change) error {
	pause, unknown := applyPause, false
	for try := 1; ; try++ {
		_, err := a.cfg.Registry.Apply(ctx, c)
		if err == nil {
			break
		}
		if unknown = unknown || errors.Is(err, storage.ErrUnknown); unknown { // an earlier send may have made it
			err = fmt.Errorf("%w: %w", storage.ErrUnknown, err)
		}
		retry := errors.Is(err, storage.ErrUnknown) || errors.Is(err, storage.ErrUnavailable)
		if !retry || try == applyTriesMax || a.cfg.Pause(ctx, pause) != nil {
			return err
		}
		pause *= 2
	}
	if err := a.cfg.Refresh(ctx); err != nil {
		a.cfg.Logger.WarnContext(ctx, "a change is stored, and this server knows of it a little later", "error", err)
	}
	return nil
}

// writeFault is the fault of a change that was not, or not surely, made.
func writeFault(err error) error {
	var conflict *registry.ConflictError
	var invalid *registry.InvalidError
	switch {
	case errors.Is(err, storage.ErrUnknown):
		return errUnknown.WithCause(err)
	case errors.As(err, &conflict):
		return fault.New(warifuv1.Reason_REASON_CONFLICT,
			"it has changed since it was looked at, or exists already; nothing was applied: look again").WithCause(err)
	case errors.As(err, &invalid):
		return fault.Invalid(invalid.Field, invalid.Rule).WithCause(err)
	case errors.Is(err, sealed.ErrNoRow):
		return errNoConsumer
	case errors.Is(err, sealed.ErrKeysFull):
		return fault.New(warifuv1.Reason_REASON_PRECONDITION, "there are as many data keys as can be kept: shred some first").WithCause(err)
	}
	return readFault(err)
}

var errUnknown = fault.New(warifuv1.Reason_REASON_OUTCOME_UNKNOWN,
	"the change may or may not be made; send it again with the same change_id, or look")

// shown is what a change that is made answers with when it cannot be looked at:
// nobody is told that nothing was applied.
func shown[M any](m M, err error) (M, error) {
	if err == nil {
		return m, nil
	}
	var none M
	return none, fault.New(warifuv1.Reason_REASON_OUTCOME_UNKNOWN, "the change is made, and cannot be shown now: look again").WithCause(err)
}

// holds refuses a version that is not the row's. It is for dry runs: what is
// really applied the registry judges.
func holds(c *warifuv1.Change, version int64) error {
	if c.GetExpectedVersion() == version {
		return nil
	}
	return fault.New(warifuv1.Reason_REASON_CONFLICT,
		fmt.Sprintf("expected version %d and found %d; nothing was applied: look again", c.GetExpectedVersion(), version))
}
