package storagetest

import (
	"errors"
	"slices"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

// audit reads all pages.
func (e *registryEnv) audit(q registry.AuditQuery) []registry.AuditEntry {
	e.Helper()
	return pages(e, q.Limit, func(cursor []byte) ([]registry.AuditEntry, []byte, error) {
		q.Cursor = cursor
		p, err := e.Audit(e.Context(), q)
		return p.Entries, p.Cursor, err
	})
}

func (e *registryEnv) findings(q registry.FindingQuery) []registry.Finding {
	e.Helper()
	return pages(e, q.Limit, func(cursor []byte) ([]registry.Finding, []byte, error) {
		q.Cursor = cursor
		p, err := e.Findings(e.Context(), q)
		return p.Findings, p.Cursor, err
	})
}

func (e *registryEnv) jobs(q registry.JobQuery) []registry.Job {
	e.Helper()
	return pages(e, q.Limit, func(cursor []byte) ([]registry.Job, []byte, error) {
		q.Cursor = cursor
		p, err := e.Jobs(e.Context(), q)
		return p.Jobs, p.Cursor, err
	})
}

func pages[R any](e *registryEnv, limit int, page func([]byte) ([]R, []byte, error)) []R {
	e.Helper()
	var all []R
	var cursor []byte
	for range pagesMax {
		rows, next, err := page(cursor)
		if err != nil {
			e.Fatalf("list: %v", err)
		}
		if len(rows) > limit {
			e.Fatalf("a page of %d has %d rows", limit, len(rows))
		}
		all = append(all, rows...)
		if next == nil {
			return all
		}
		cursor = next
	}
	e.Fatalf("the list does not end within %d pages", pagesMax)
	return nil
}

var pageLimits = []int{1, 2, 3, 7, registry.PageMax}

var registryListCases = []registryCase{
	{"audit/newest-first-by-tenant-and-time", registryAudit},
	{"findings/newest-first-by-tenant-and-state", func(e *registryEnv) {
		e.twoTenants()
		var all []registry.Finding
		for n := range 9 {
			f := aFinding(9 - n) // IDs against the order of time
			f.Tenant = claim.TenantID([]int{7, 8, 0}[n%3])
			f.State = registry.FindingState(1 + n/3)
			all = append(all, f)
		}
		e.raise(all[:4])
		e.clock.Advance(time.Second)
		e.raise(all[4:])
		stored := e.findings(registry.FindingQuery{Scope: registry.Platform(), Limit: 100})
		if len(stored) != len(all) {
			e.Fatalf("%d findings of %d", len(stored), len(all))
		}
		for i := 1; i < len(stored); i++ {
			a, b := stored[i-1], stored[i]
			if a.Created < b.Created || a.Created == b.Created && a.ID.String() <= b.ID.String() {
				e.Fatalf("%v %d is before %v %d", a.ID, a.Created, b.ID, b.Created)
			}
		}
		for _, scope := range []registry.Scope{registry.Of(7), registry.Of(8), registry.Platform(), registry.Of(9)} {
			for _, states := range [][]registry.FindingState{nil, {1}, {1, 3}, {2}, {1, 2, 3}} {
				var want []registry.Finding
				for _, f := range stored {
					if scope.Shows(f.Tenant) && (states == nil || slices.Contains(states, f.State)) {
						want = append(want, f)
					}
				}
				for _, limit := range pageLimits {
					same(e, e.findings(registry.FindingQuery{Scope: scope, States: states, Limit: limit}), want)
				}
			}
		}
	}},
	{"findings/keep-their-place-and-go", func(e *registryEnv) {
		e.tenant()
		e.raise([]registry.Finding{aFinding(1)})
		e.clock.Advance(time.Second)
		e.raise([]registry.Finding{aFinding(2)})
		q := registry.FindingQuery{Scope: registry.Of(7), Limit: 10}
		old := e.findings(q)[1]
		old.State, old.Assignee = registry.FindingResolved, "me"
		c := e.change()
		c.Findings = []registry.Write[registry.Finding]{registry.Put(old)}
		e.apply(c)
		got := e.findings(q)
		if len(got) != 2 || got[1].ID != id(1) || got[1].Assignee != "me" || got[1].Version != 2 {
			e.Fatalf("%+v", got)
		}
		c = e.change()
		c.Findings = []registry.Write[registry.Finding]{registry.Delete(got[1])}
		e.apply(c)
		if got := e.findings(q); len(got) != 1 || got[0].ID != id(2) {
			e.Fatalf("%+v", got)
		}
		if got := e.findings(registry.FindingQuery{Scope: registry.Platform(), Limit: 10}); len(got) != 1 {
			e.Fatalf("%+v", got)
		}
	}},
	{"jobs/newest-first-by-tenant-and-state", func(e *registryEnv) {
		e.twoTenants()
		for n := range 6 {
			j := aJob(n + 1)
			j.Tenant, j.State = claim.TenantID(7+n%2), registry.JobState(1+n%5)
			c := e.change()
			c.Jobs = []registry.Write[registry.Job]{registry.Put(j)}
			e.apply(c)
			e.clock.Advance(time.Second)
		}
		for _, limit := range pageLimits {
			var got []int
			for _, j := range e.jobs(registry.JobQuery{Scope: registry.Of(8), States: []registry.JobState{registry.JobRunning, registry.JobFailed}, Limit: limit}) {
				got = append(got, int(j.ID[15]))
			}
			same(e, got, []int{4, 2})
			if n := len(e.jobs(registry.JobQuery{Scope: registry.Platform(), Limit: limit})); n != 6 {
				e.Fatalf("%d jobs of 6", n)
			}
		}
	}},
	{"lists/refuse-what-they-cannot-mean", registryBadQueries},
}

func (e *registryEnv) twoTenants() {
	e.Helper()
	c := e.change()
	c.Tenants = []registry.Write[registry.Tenant]{registry.Put(aTenant(7, "seven")), registry.Put(aTenant(8, "eight"))}
	c.Audit = []registry.AuditEntry{{Actor: "system", Action: "setup"}}
	e.apply(c)
}

func (e *registryEnv) raise(fs []registry.Finding) {
	e.Helper()
	c := e.change()
	c.Audit = nil
	for _, f := range fs {
		c.Findings = append(c.Findings, registry.Put(f))
	}
	e.apply(c)
}

func registryAudit(e *registryEnv) {
	e.twoTenants()
	start := e.now()
	for n := range 10 {
		c := e.change()
		c.Audit = nil
		for i := range 1 + n%3 {
			c.Audit = append(c.Audit, registry.AuditEntry{
				Tenant: claim.TenantID([]int{7, 8, 0}[(n+i)%3]), Actor: "a", Action: "x", Target: id(10*n + i).String(),
			})
		}
		e.apply(c)
		if n%2 == 1 { // two changes have one time
			e.clock.Advance(time.Second)
		}
	}
	all := e.audit(registry.AuditQuery{Scope: registry.Platform(), Limit: registry.PageMax})
	for i := 1; i < len(all); i++ {
		a, b := all[i-1], all[i]
		if a.At < b.At || a.Revision < b.Revision || a.Revision == b.Revision && a.N <= b.N {
			e.Fatalf("%+v is before %+v", a, b)
		}
	}
	if len(all) != 20 {
		e.Fatalf("%d entries, want 20", len(all))
	}
	second := claim.Time(time.Second / time.Microsecond)
	for _, scope := range []registry.Scope{registry.Of(7), registry.Of(8), registry.Platform(), registry.Of(9)} {
		for _, span := range [][2]claim.Time{{0, 0}, {start + second, 0}, {0, start + second}, {start + second, start + 3*second}, {start + 1, start + second}} {
			var want []registry.AuditEntry
			for _, a := range all {
				if scope.Shows(a.Tenant) && a.At >= span[0] && (span[1] == 0 || a.At < span[1]) {
					want = append(want, a)
				}
			}
			for _, limit := range pageLimits {
				same(e, e.audit(registry.AuditQuery{Scope: scope, From: span[0], Until: span[1], Limit: limit}), want)
			}
		}
	}
}

func registryBadQueries(e *registryEnv) {
	e.twoTenants()
	for n := range 4 {
		e.raise([]registry.Finding{aFinding(n + 1)})
		c := e.change()
		c.Jobs = []registry.Write[registry.Job]{registry.Put(aJob(n + 1))}
		e.apply(c)
	}
	lists := map[string]func(registry.Scope, []byte, int) ([]byte, error){
		"audit": func(s registry.Scope, cursor []byte, limit int) ([]byte, error) {
			p, err := e.Audit(e.Context(), registry.AuditQuery{Scope: s, Cursor: cursor, Limit: limit})
			return p.Cursor, err
		},
		"findings": func(s registry.Scope, cursor []byte, limit int) ([]byte, error) {
			p, err := e.Findings(e.Context(), registry.FindingQuery{Scope: s, Cursor: cursor, Limit: limit})
			return p.Cursor, err
		},
		"jobs": func(s registry.Scope, cursor []byte, limit int) ([]byte, error) {
			p, err := e.Jobs(e.Context(), registry.JobQuery{Scope: s, Cursor: cursor, Limit: limit})
			return p.Cursor, err
		},
	}
	cursors := map[string][]byte{}
	for name, list := range lists {
		for _, limit := range []int{0, -1, registry.PageMax + 1} {
			if _, err := list(registry.Of(7), nil, limit); !errors.Is(err, registry.ErrInvalid) {
				e.Errorf("%s, limit %d: %v", name, limit, err)
			}
		}
		for _, s := range []registry.Scope{{}, registry.Of(0), registry.Of(-1)} {
			if _, err := list(s, nil, 1); !errors.Is(err, registry.ErrInvalid) {
				e.Errorf("%s of nobody: %v", name, err)
			}
		}
		cursor, err := list(registry.Of(7), nil, 1)
		if err != nil || cursor == nil {
			e.Fatalf("%s: %v", name, err)
		}
		cursors[name] = cursor
	}
	for name, list := range lists {
		for other, cursor := range cursors {
			if _, err := list(registry.Of(7), cursor, 1); other != name && !errors.Is(err, storage.ErrCursor) {
				e.Errorf("%s took a cursor of %s: %v", name, other, err)
			}
		}
		for _, s := range []registry.Scope{registry.Of(8), registry.Platform()} {
			if _, err := list(s, cursors[name], 1); !errors.Is(err, storage.ErrCursor) {
				e.Errorf("%s took the cursor of another tenant: %v", name, err)
			}
		}
		for _, garbage := range garbageCursors() {
			if _, err := list(registry.Of(7), garbage, 1); !errors.Is(err, storage.ErrCursor) {
				e.Errorf("%s: cursor %q: error %v, want %v", name, garbage, err, storage.ErrCursor)
			}
		}
	}
	if _, err := e.Findings(e.Context(), registry.FindingQuery{Scope: registry.Of(7), States: []registry.FindingState{9}, Limit: 1}); !errors.Is(err, registry.ErrInvalid) {
		e.Errorf("state 9: %v", err)
	}
	if _, err := e.Audit(e.Context(), registry.AuditQuery{Scope: registry.Of(7), From: 2, Until: 1, Limit: 1}); !errors.Is(err, registry.ErrInvalid) {
		e.Errorf("an empty range: %v", err)
	}
}
