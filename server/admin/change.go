package admin

import (
	"context"
	"crypto/rand"
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
func why(c *warifuv1.Change, mustLook bool) (registry.ID, error) {
	var id registry.ID
	if n := len(c.GetReason()); n == 0 || n > registry.TextBytesMax {
		return id, fault.Invalid("change.reason", limitReason)
	}
	if c.GetExpectedVersion() < 0 || mustLook && c.GetExpectedVersion() == 0 {
		return id, fault.Invalid("change.expected_version", limitLook)
	}
	if c.GetChangeId() == "" {
		return newID(), nil
	}
	parsed, err := uuid.Parse(c.GetChangeId())
	if err != nil || parsed == uuid.Nil {
		return id, fault.Invalid("change.change_id", limitChangeID)
	}
	return registry.ID(parsed), nil
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
	pause := applyPause
	for try := 1; ; try++ {
		_, err := a.cfg.Registry.Apply(ctx, c)
		if err == nil {
			break
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
	case errors.As(err, &conflict):
		return fault.New(warifuv1.Reason_REASON_CONFLICT,
			"it has changed since it was looked at, or exists already; nothing was applied: look again").WithCause(err)
	case errors.As(err, &invalid):
		return fault.Invalid(invalid.Field, invalid.Rule).WithCause(err)
	case errors.Is(err, storage.ErrUnknown):
		return fault.New(warifuv1.Reason_REASON_OUTCOME_UNKNOWN,
			"the change may or may not be made; send it again with the same change_id, or look").WithCause(err)
	}
	return readFault(err)
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
