package sqlstore_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
	"github.com/warifu/warifu/storage/sqlstore"
	"github.com/warifu/warifu/storage/sqlstore/mitm"
)

// exception is where the registry does not do what the model says. Those of
// Apply need a trip of a transaction that is executed once more, and no network
// does that to a session: a late one ends with its transaction. Those of leases
// need no more than a statement whose client gave up and went on before it was
// executed; TwiceLate stands for that here, because its order is certain.
type exception struct {
	statements []string
	variant    string
	kinds      []mitm.Kind
	dialect    sqlstore.Dialect // "": both
	reason     string
	// unknown: the call says storage.ErrUnknown though it was struck only once.
	unknown bool
	// change makes of what should be stored what is; nil: nothing.
	change func(s *registryState)
}

func (x exception) String() string {
	return fmt.Sprintf("%v %q, %v: %s", x.statements, x.variant, x.kinds, x.reason)
}

func exceptions() []exception {
	twiceLate := []mitm.Kind{mitm.TwiceLate}
	return []exception{
		{
			statements: []string{"registry_meta_seed", "registry_meta_next", "registry_proof", "registry_rows_get", "registry_labels"},
			kinds:      []mitm.Kind{mitm.Twice, mitm.TwiceLate},
			reason:     "counts the revision up without a change; readers see a gap, which means nothing to them",
			change:     func(s *registryState) { s.All.Revision++; s.Later.Revision++ },
		},
		{
			statements: []string{"registry_rows_put", "registry_rows_drop", "registry_audit_put"},
			kinds:      []mitm.Kind{mitm.Twice}, dialect: sqlstore.Cockroach, unknown: true,
			reason: "the audit entry's primary key fails the second delivery, and with it a transaction whose client has heard of no error; RELEASE is then refused with 25P02, which is not run again",
		},
		{
			statements: []string{"registry_rows_put"}, variant: "dropped", kinds: twiceLate,
			reason: "a finding or job that the system wrote, without an audit entry, comes back after it was dropped: nothing is left that says it was there",
			change: func(s *registryState) {
				f := aFinding(0, "again").Row
				made := s.Leases.Now.Add(-time.Second)
				f.Head = registry.Head{Version: 1, Revision: s.All.Revision - 1, Change: registry.ID{3}, Created: made, Updated: made}
				s.Findings = append(s.Findings, f)
			},
		},
		{
			statements: []string{"registry_lease"}, variant: "given back", kinds: twiceLate,
			reason: "a lease that was given back is taken again, for one term, by an owner who does not know: work stands still for that long",
			change: changeLease(func(l *registry.Lease, now claim.Time) {
				l.Owner, l.Fence, l.Until = "me", max(l.Fence+1, claim.Fence(now)), now.Add(time.Minute)
			}),
		},
		{
			statements: []string{"registry_lease_save"}, variant: "goes on", kinds: twiceLate,
			reason: "the cursor goes back to what the same holder had saved before: whoever takes over does some work again",
			change: changeLease(func(l *registry.Lease, _ claim.Time) { l.Cursor = []byte("here") }),
		},
	}
}

// changeLease changes the lease of the work.
func changeLease(change func(l *registry.Lease, now claim.Time)) func(*registryState) {
	return func(s *registryState) {
		for i := range s.Leases.Leases {
			if l := &s.Leases.Leases[i]; l.Name == matrixWork {
				change(l, s.Leases.Now)
			}
		}
	}
}

// exception returns the known exception that this cell is, if it is one.
func (c *registryCell) exception() *exception {
	for _, x := range exceptions() {
		if slices.Contains(x.statements, c.statement) && slices.Contains(x.kinds, c.fault.Kind) &&
			x.variant == c.op.variant && (x.dialect == "" || x.dialect == c.dialect) {
			return &x
		}
	}
	return nil
}

// compare demands that what is stored is what the model says. At the stage where
// a known exception shows, it demands exactly that, so that none outlives its
// cause.
func (c *registryCell) compare(t *testing.T, what string, shows bool) {
	t.Helper()
	got, want := c.stored(t), readRegistry(t, c.model)
	x := c.exception()
	if x == nil || x.change == nil || !shows {
		same(t, what, got, want)
		return
	}
	if reflect.DeepEqual(got, want) {
		t.Fatalf("%s: the exception is none any more: %s", what, x)
	}
	x.change(&want)
	same(t, what+", as an exception", got, want)
	t.Logf("known exception: %s", x)
}

// registryState is everything that can be read. All of it is compared as it is:
// times are the suite's and fences are made of them, so the model has the same.
type registryState struct {
	All      registry.Changes
	Later    registry.Changes // than the first revision: tombstones are in it
	Audit    []registry.AuditEntry
	Findings []registry.Finding
	Jobs     []registry.Job
	Leases   registry.Leases
	Used     map[string]claim.Time
}

// stored is what the tables have, read beside the proxy.
func (c *registryCell) stored(t *testing.T) registryState {
	t.Helper()
	return readRegistry(t, registryOf(t, c.direct))
}

func readRegistry(t *testing.T, r registry.Registry) (s registryState) {
	t.Helper()
	ctx, scope := context.WithoutCancel(t.Context()), registry.Platform()
	audit, err1 := r.Audit(ctx, registry.AuditQuery{Scope: scope, Limit: matrixPage})
	findings, err2 := r.Findings(ctx, registry.FindingQuery{Scope: scope, Limit: matrixPage})
	jobs, err3 := r.Jobs(ctx, registry.JobQuery{Scope: scope, Limit: matrixPage})
	s.Audit, s.Findings, s.Jobs = audit.Entries, findings.Findings, jobs.Jobs
	var errs [4]error
	s.All, errs[0] = loaded(ctx, r, 0)
	s.Later, errs[1] = loaded(ctx, r, 1)
	s.Leases, errs[2] = leases(ctx, r)
	s.Used, errs[3] = r.Used(ctx, []string{matrixKey, unknownKey})
	if err := errors.Join(append(errs[:], err1, err2, err3)...); err != nil {
		t.Fatalf("read: %v", err)
	}
	return s
}

// loaded is a Load in a fixed order: it promises none.
func loaded(ctx context.Context, r registry.Registry, since registry.Revision) (registry.Changes, error) {
	c, err := r.Load(ctx, since)
	slices.SortFunc(c.Tenants, func(a, b registry.Tenant) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(c.Consumers, func(a, b registry.Consumer) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(c.Keys, func(a, b registry.Key) int { return cmp.Compare(a.ID, b.ID) })
	return c, err
}

func leases(ctx context.Context, r registry.Registry) (registry.Leases, error) {
	l, err := r.Leases(ctx)
	for i := range l.Leases {
		l.Leases[i] = bare(l.Leases[i])
	}
	return l, err
}

// bare makes no cursor and an empty one the same.
func bare(l registry.Lease) registry.Lease {
	if len(l.Cursor) == 0 {
		l.Cursor = nil
	}
	return l
}

func same[V any](t *testing.T, what string, got, want V) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%s:\ngot  %+v\nwant %+v", what, got, want)
	}
}
