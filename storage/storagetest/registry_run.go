package storagetest

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"testing"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

// RegistryHandle is an open registry and the way to open it again.
type RegistryHandle struct {
	registry.Registry
	// Reopen ends the registry, as a crash where the driver can simulate one,
	// and opens what it has made durable.
	Reopen func(t T) registry.Registry
}

// RegistryOpener opens a fresh, empty registry whose time is clock's. It ends
// the test where it cannot, and cleans up with it.
type RegistryOpener func(t T, clock *Clock) RegistryHandle

// registryCase is one rule of a registry, or a few that share their setting.
type registryCase struct {
	name string
	run  func(*registryEnv)
}

func allRegistryCases() []registryCase {
	var all []registryCase
	for _, subject := range [][]registryCase{
		registryApplyCases, registryGuardCases, registryTenantCases, registryLoadCases, registryListCases, registryLeaseCases, registryRaceCases,
	} {
		all = append(all, subject...)
	}
	return all
}

// RunRegistry runs the conformance suite of registries, each case in parallel on
// a registry of its own.
func RunRegistry(t *testing.T, open RegistryOpener) {
	t.Helper()
	for _, c := range allRegistryCases() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := &registryEnv{T: t, clock: NewClock(Start)}
			e.RegistryHandle = open(t, e.clock)
			c.run(e)
		})
	}
}

// RunRegistryCases runs the suite outside `go test`, as RunCases does.
func RunRegistryCases(ctx context.Context, w io.Writer, open RegistryOpener) error {
	failed, cases := 0, allRegistryCases()
	for _, c := range cases {
		if err := ctx.Err(); err != nil {
			return err
		}
		name := "registry/" + c.name
		p := runPlain(ctx, testCase{name: name, run: func(e *env) {
			r := &registryEnv{T: e.T, clock: e.clock}
			r.RegistryHandle = open(e.T, e.clock)
			c.run(r)
		}}, func(T, *Clock, time.Duration) storage.Store { return nil })
		verdict := "PASS"
		if p.failed {
			verdict = "FAIL"
			failed++
		}
		if _, err := fmt.Fprintf(w, "%s %s\n%s", verdict, name, p.log.String()); err != nil {
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("%w: %d of %d registry cases failed", ErrFailed, failed, len(cases))
	}
	return nil
}

// registryEnv is one case with its registry.
type registryEnv struct {
	T
	RegistryHandle
	clock   *Clock
	changes int
}

func (e *registryEnv) now() claim.Time { return claim.FromTime(e.clock.Now()) }

// id returns the n-th of many IDs.
func id(n int) registry.ID {
	var i registry.ID
	i[0] = 0xd1
	binary.BigEndian.PutUint64(i[8:], uint64(n))
	return i
}

// change is a fresh, audited change.
func (e *registryEnv) change() registry.Change {
	e.changes++
	return registry.Change{ID: id(e.changes), Audit: []registry.AuditEntry{{Actor: "key-1", Action: "test", Tenant: 7}}}
}

// apply is an Apply that must be made.
func (e *registryEnv) apply(c registry.Change) registry.Applied {
	e.Helper()
	a, err := e.Apply(e.Context(), c)
	if err != nil {
		e.Fatalf("Apply: %v", err)
	}
	if a.At != e.now() {
		e.Fatalf("Apply: store time is %v, want %v", a.At.Std(), e.clock.Now())
	}
	return a
}

// refused demands that c is refused with a conflict over ref, or as invalid
// where ref is nil, and that nothing is changed by it.
func (e *registryEnv) refused(c registry.Change, ref *registry.Ref) {
	e.Helper()
	before := e.everything()
	_, err := e.Apply(e.Context(), c)
	var conflict *registry.ConflictError
	var invalid *registry.InvalidError
	switch {
	case ref == nil && (!errors.As(err, &invalid) || !errors.Is(err, registry.ErrInvalid)):
		e.Fatalf("Apply: error %v, want %v", err, registry.ErrInvalid)
	case ref != nil && (!errors.As(err, &conflict) || !errors.Is(err, registry.ErrConflict)):
		e.Fatalf("Apply: error %v, want %v over %s", err, registry.ErrConflict, ref)
	case ref != nil && conflict.Ref != *ref:
		e.Fatalf("Apply: conflict over %s, want %s", conflict.Ref, ref)
	}
	if after := e.everything(); !reflect.DeepEqual(before, after) {
		e.Fatalf("a refused change has changed something:\n%s\n%s", asJSON(before), asJSON(after))
	}
}

// everything is what a registry shows.
type everything struct {
	Changes  registry.Changes
	Audit    []registry.AuditEntry
	Findings []registry.Finding
	Jobs     []registry.Job
}

func (e *registryEnv) everything() everything {
	e.Helper()
	return everything{
		Changes: e.load(0), Audit: e.audit(registry.AuditQuery{Scope: registry.Platform(), Limit: 100}),
		Findings: e.findings(registry.FindingQuery{Scope: registry.Platform(), Limit: 100}),
		Jobs:     e.jobs(registry.JobQuery{Scope: registry.Platform(), Limit: 100}),
	}
}

// load is a Load that must not fail, in a fixed order.
func (e *registryEnv) load(since registry.Revision) registry.Changes {
	e.Helper()
	c, err := e.Load(e.Context(), since)
	if err != nil {
		e.Fatalf("Load: %v", err)
	}
	sortChanges(&c)
	return c
}

// tenant makes tenant 7 and returns it as it was read.
func (e *registryEnv) tenant() registry.Tenant {
	e.Helper()
	c := e.change()
	c.Tenants = []registry.Write[registry.Tenant]{registry.Put(aTenant(7, "seven"))}
	e.apply(c)
	return e.load(0).Tenants[0]
}

// consumer makes a consumer of tenant 7 and returns it as it was read.
func (e *registryEnv) consumer(name string) registry.Consumer {
	e.Helper()
	c := e.change()
	c.Consumers = []registry.Write[registry.Consumer]{registry.Put(registry.Consumer{Tenant: 7, Name: name, Window: time.Hour})}
	e.apply(c)
	for _, v := range e.load(0).Consumers {
		if v.Name == name {
			return v
		}
	}
	e.Fatalf("consumer %q is not there", name)
	return registry.Consumer{}
}

func aTenant(id claim.TenantID, name string) registry.Tenant {
	return registry.Tenant{ID: id, Name: name, State: registry.TenantActive}
}

func aKey(id string) registry.Key {
	return registry.Key{ID: id, Tenant: 7, Secret: registry.Hash{1, 2}}
}

func aFinding(n int) registry.Finding {
	return registry.Finding{ID: id(n), Tenant: 7, Kind: "ran-twice", State: registry.FindingOpen}
}

func aJob(n int) registry.Job {
	return registry.Job{ID: id(n), Tenant: 7, Kind: "purge", State: registry.JobPending}
}

func asJSON(v any) string {
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// same demands that two rows are the same in all fields.
func same[R any](e *registryEnv, got, want R) {
	e.Helper()
	if !reflect.DeepEqual(got, want) {
		e.Fatalf("got  %+v\nwant %+v", got, want)
	}
}
