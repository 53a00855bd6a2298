package sqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
	"github.com/warifu/warifu/storage/storagetest"
)

const (
	matrixPage = 100 // more than a case ever has
	matrixKey  = "key-1"
	unknownKey = "key-2"
	matrixWork = "work"
)

// matrixFinding is the finding and the job that changes are about.
var matrixFinding = registry.ID{0xf1}

// registryOperation is a call that sends a statement. It runs on the store and
// on the model alike, and may be sent again.
type registryOperation struct {
	// variant is one of several operations of a statement.
	variant     string
	reads       bool
	transaction bool // of several trips, which runs again as a whole
	// overtaken: all that is special is what others do before a late delivery.
	overtaken bool
	prepare   registryStep
	// call returns what it was answered with. seen is what was stored before.
	call registryCall
	// after is what others do before a late delivery arrives.
	after registryStep
}

type (
	registryCall func(ctx context.Context, r registry.Registry, seen registryState) (any, error)
	registryStep func(ctx context.Context, r registry.Registry, clock *storagetest.Clock) error
)

// inTurn does one after the other.
func inTurn(all ...registryStep) registryStep {
	return func(ctx context.Context, r registry.Registry, clock *storagetest.Clock) error {
		for _, do := range all {
			if err := do(ctx, r, clock); err != nil {
				return err
			}
		}
		return nil
	}
}

func passes(d time.Duration) registryStep {
	return func(_ context.Context, _ registry.Registry, clock *storagetest.Clock) error {
		clock.Advance(d)
		return nil
	}
}

func applied(c registry.Change) registryStep {
	return func(ctx context.Context, r registry.Registry, _ *storagetest.Clock) error {
		_, err := r.Apply(ctx, c)
		return err
	}
}

func apply(c registry.Change) registryCall {
	return func(ctx context.Context, r registry.Registry, _ registryState) (any, error) { return r.Apply(ctx, c) }
}

// rewritten writes a tenant, a consumer, a finding and a job that have this
// version.
func rewritten(n byte, version int64, name string) registry.Change {
	head := registry.Head{Version: version}
	c := aChange(n, name)
	c.Tenants[0].Row.Head = head
	c.Consumers = []registry.Write[registry.Consumer]{registry.Put(registry.Consumer{Head: head, Tenant: 1, Name: "c", Note: name})}
	c.Findings = []registry.Write[registry.Finding]{aFinding(version, name)}
	c.Jobs = []registry.Write[registry.Job]{registry.Put(registry.Job{
		Head: head, ID: matrixFinding, Tenant: 1, Kind: "purge", State: registry.JobRunning, Done: int64(n),
	})}
	return c
}

func aFinding(version int64, assignee string) registry.Write[registry.Finding] {
	return registry.Put(registry.Finding{
		Head: registry.Head{Version: version}, ID: matrixFinding, Tenant: 1, Kind: "ran-twice", State: registry.FindingOpen, Assignee: assignee,
	})
}

// withKey adds the key, and an entry in the tenant's own log.
func withKey(c registry.Change, version int64) registry.Change {
	c.Keys = []registry.Write[registry.Key]{registry.Put(registry.Key{Head: registry.Head{Version: version}, ID: matrixKey, Tenant: 1})}
	c.Audit = append(c.Audit, registry.AuditEntry{Tenant: 1, Actor: "a", Action: "key"})
	return c
}

// bySystem is a change of the finding that leaves no audit entry.
func bySystem(n byte, version int64, assignee string) registry.Change {
	return registry.Change{ID: registry.ID{n}, Findings: []registry.Write[registry.Finding]{aFinding(version, assignee)}}
}

// dropped deletes the key, which leaves a tombstone, and the finding, which
// leaves nothing.
func dropped(n byte, version int64) registry.Change {
	key, finding := withKey(registry.Change{}, version).Keys[0], aFinding(version, "")
	key.Delete, finding.Delete = true, true
	return registry.Change{
		ID: registry.ID{n}, Audit: []registry.AuditEntry{{Actor: "a", Action: "drop"}},
		Keys: []registry.Write[registry.Key]{key}, Findings: []registry.Write[registry.Finding]{finding},
	}
}

// furnished stores one row of each kind, a note of a use and somebody's lease.
func furnished(ctx context.Context, r registry.Registry, clock *storagetest.Clock) error {
	_, err := r.Apply(ctx, withKey(rewritten(1, 0, "one"), 0))
	_, _, err2 := r.Lease(ctx, "other", "somebody", time.Hour)
	return errors.Join(err, err2, r.Seen(ctx, map[string]claim.Time{matrixKey: claim.FromTime(clock.Now())}))
}

func leased(owner string) registryStep {
	return func(ctx context.Context, r registry.Registry, _ *storagetest.Clock) error {
		l, held, err := r.Lease(ctx, matrixWork, owner, time.Minute)
		if err == nil && !held {
			err = fmt.Errorf("the lease is %s's", l.Owner)
		}
		return err
	}
}

// ofHolder finds the lease of the work, in what is stored now, and does
// something with its fence.
func ofHolder(do func(ctx context.Context, r registry.Registry, fence claim.Fence) error) registryStep {
	return func(ctx context.Context, r registry.Registry, _ *storagetest.Clock) error {
		found, err := r.Leases(ctx)
		if err != nil {
			return err
		}
		return do(ctx, r, fenceOf(found))
	}
}

func fenceOf(l registry.Leases) claim.Fence {
	for i := range l.Leases {
		if l.Leases[i].Name == matrixWork {
			return l.Leases[i].Fence
		}
	}
	return 0
}

// saved moves the cursor on, as the holder.
func saved(cursor string) registryStep {
	return ofHolder(func(ctx context.Context, r registry.Registry, fence claim.Fence) error {
		ok, err := r.SaveCursor(ctx, matrixWork, fence, []byte(cursor))
		if err == nil && !ok {
			err = errors.New("the fence is not the lease's")
		}
		return err
	})
}

func lease(ctx context.Context, r registry.Registry, _ registryState) (any, error) {
	l, held, err := r.Lease(ctx, matrixWork, "me", time.Minute)
	return []any{bare(l), held}, err
}

func saveCursor(ctx context.Context, r registry.Registry, seen registryState) (any, error) {
	return r.SaveCursor(ctx, matrixWork, fenceOf(seen.Leases), []byte("here"))
}

func unlease(ctx context.Context, r registry.Registry, seen registryState) (any, error) {
	return nil, r.Unlease(ctx, matrixWork, fenceOf(seen.Leases))
}

// use notes what a server saw: a key that was used now, and one that is none.
func use(ctx context.Context, r registry.Registry, seen registryState) (any, error) {
	now := seen.Leases.Now
	return nil, r.Seen(ctx, map[string]claim.Time{matrixKey: now, unknownKey: now})
}

func used(ctx context.Context, r registry.Registry, clock *storagetest.Clock) error {
	return r.Seen(ctx, map[string]claim.Time{matrixKey: claim.FromTime(clock.Now())})
}

// lists reads both lists of a scope.
func lists(s registry.Scope) registryCall {
	return func(ctx context.Context, r registry.Registry, _ registryState) (any, error) {
		findings, err := r.Findings(ctx, registry.FindingQuery{Scope: s, Limit: matrixPage})
		if err != nil {
			return nil, err
		}
		jobs, err := r.Jobs(ctx, registry.JobQuery{Scope: s, Limit: matrixPage})
		return []any{findings, jobs}, err
	}
}

func auditOf(s registry.Scope) registryCall {
	return func(ctx context.Context, r registry.Registry, _ registryState) (any, error) {
		return r.Audit(ctx, registry.AuditQuery{Scope: s, Limit: matrixPage})
	}
}

// registryOperations are by the file of the statement that they are to send.
func registryOperations() map[string][]registryOperation {
	ops := registryLeaseOperations()
	maps.Copy(ops, registryReads())
	change := transaction("", furnished, rewritten(2, 1, "two"), rewritten(3, 2, "three"))
	for _, name := range []string{"registry_meta_next", "registry_proof", "registry_rows_get", "registry_labels", "registry_audit_put"} {
		ops[name] = []registryOperation{change}
	}
	ops["registry_meta_seed"] = []registryOperation{transaction("", inTurn(), aChange(1, "one"), renamed(2, 1, "two"))}
	gone := transaction("dropped", inTurn(furnished, applied(dropped(2, 1))), bySystem(3, 0, "again"), dropFinding(4, 1))
	gone.overtaken = true
	ops["registry_rows_put"] = []registryOperation{
		change, transaction("by the system", furnished, bySystem(2, 1, "two"), bySystem(3, 2, "three")), gone,
	}
	// What is raised again for the same cause has the ID and the version of what
	// was dropped.
	ops["registry_rows_drop"] = []registryOperation{
		transaction("", furnished, dropped(2, 1), bySystem(3, 0, "again"), withKey(renamed(4, 1, "two"), 0)),
	}
	return ops
}

// transaction is an Apply, and what others apply before something arrives late.
func transaction(variant string, prepare registryStep, call registry.Change, after ...registry.Change) registryOperation {
	op := registryOperation{variant: variant, transaction: true, prepare: prepare, call: apply(call)}
	var others []registryStep
	for _, c := range after {
		others = append(others, passes(time.Second), applied(c))
	}
	op.after = inTurn(others...)
	return op
}

func registryLeaseOperations() map[string][]registryOperation {
	mine, theirs := inTurn(furnished, leased("me"), passes(time.Second)), inTurn(passes(2*time.Minute), leased("you"))
	taking := registryOperation{prepare: furnished, call: lease, after: theirs}
	extending := registryOperation{variant: "extend", prepare: mine, call: lease, after: theirs}
	return map[string][]registryOperation{
		"registry_lease": {
			taking, extending,
			{variant: "given back", overtaken: true, prepare: mine, call: lease, after: ofHolder(
				func(ctx context.Context, r registry.Registry, f claim.Fence) error {
					return r.Unlease(ctx, matrixWork, f)
				},
			)},
		},
		"registry_lease_get": {taking, extending},
		"registry_lease_save": {
			{prepare: mine, call: saveCursor, after: inTurn(theirs, saved("there"))},
			{variant: "goes on", overtaken: true, prepare: mine, call: saveCursor, after: saved("there")},
		},
		"registry_lease_end": {{prepare: mine, call: unlease, after: inTurn(leased("you"), passes(time.Second))}},
		"registry_seen_put":  {{prepare: inTurn(furnished, passes(time.Hour)), call: use, after: inTurn(passes(time.Hour), used)}},
	}
}

func registryReads() map[string][]registryOperation {
	ops := map[string][]registryOperation{}
	for name, call := range map[string]registryCall{
		"registry_load":      func(ctx context.Context, r registry.Registry, _ registryState) (any, error) { return loaded(ctx, r, 0) },
		"registry_leases":    func(ctx context.Context, r registry.Registry, _ registryState) (any, error) { return leases(ctx, r) },
		"registry_list":      lists(registry.Of(1)),
		"registry_list_all":  lists(registry.Platform()),
		"registry_audit":     auditOf(registry.Of(1)),
		"registry_audit_all": auditOf(registry.Platform()),
		"registry_seen": func(ctx context.Context, r registry.Registry, _ registryState) (any, error) {
			return r.Used(ctx, []string{matrixKey, unknownKey})
		},
	} {
		ops[name] = []registryOperation{{reads: true, prepare: furnished, call: call}}
	}
	return ops
}

// renamed changes the tenant only.
func renamed(n byte, version int64, name string) registry.Change {
	c := aChange(n, name)
	c.Tenants[0].Row.Version = version
	return c
}

// dropFinding deletes the finding only.
func dropFinding(n byte, version int64) registry.Change {
	c := dropped(n, version)
	c.Keys = nil
	return c
}
