package registry

import "github.com/warifu/warifu/storage/claim"

// Scope says whose rows a query may show. Its zero value shows nothing: a query
// that forgot to say is refused.
type Scope struct {
	tenant   claim.TenantID
	platform bool
}

// Of is one tenant's.
func Of(tenant claim.TenantID) Scope { return Scope{tenant: tenant} }

// Platform is everything, of all tenants and of the installation itself.
func Platform() Scope { return Scope{platform: true} }

// Tenant returns whose it is; all reports that it is everything.
func (s Scope) Tenant() (id claim.TenantID, all bool) { return s.tenant, s.platform }

// Shows reports whether rows of a tenant are in it.
func (s Scope) Shows(tenant claim.TenantID) bool { return s.platform || s.tenant == tenant }

// Mark is the tenant, and -1 for everything: what cursors are bound to.
func (s Scope) Mark() claim.TenantID {
	if s.platform {
		return -1
	}
	return s.tenant
}

// AuditQuery asks for a page of the audit log.
type AuditQuery struct {
	Scope       Scope
	From, Until claim.Time // half open; 0: without bound
	Cursor      []byte     // nil begins
	Limit       int        // 1–PageMax
}

// AuditPage is one page. A nil Cursor ends the list.
type AuditPage struct {
	Entries []AuditEntry
	Cursor  []byte
}

// FindingQuery asks for a page of findings.
type FindingQuery struct {
	Scope  Scope
	States []FindingState // nil: all
	Cursor []byte
	Limit  int
}

// FindingPage is one page. A nil Cursor ends the list.
type FindingPage struct {
	Findings []Finding
	Cursor   []byte
}

// JobQuery asks for a page of jobs.
type JobQuery struct {
	Scope  Scope
	States []JobState // nil: all
	Cursor []byte
	Limit  int
}

// JobPage is one page. A nil Cursor ends the list.
type JobPage struct {
	Jobs   []Job
	Cursor []byte
}

// List is a query for findings or jobs as drivers work with it.
type List struct {
	Kind   Kind
	Scope  Scope
	States []int16 // never empty
	Cursor []byte
	Limit  int
}

// List checks the query.
func (q *FindingQuery) List() (List, error) {
	return newList(KindFinding, q.Scope, q.States, int16(FindingResolved), q.Cursor, q.Limit)
}

// List checks the query.
func (q *JobQuery) List() (List, error) {
	return newList(KindJob, q.Scope, q.States, int16(JobCancelled), q.Cursor, q.Limit)
}

func newList[S ~uint8](kind Kind, scope Scope, states []S, last int16, cursor []byte, limit int) (List, error) {
	l := List{Kind: kind, Scope: scope, Cursor: cursor, Limit: limit}
	for _, s := range states {
		if s < 1 || int16(s) > last {
			return l, invalid("states", "hold %d; they are 1–%d", s, last)
		}
		l.States = append(l.States, int16(s))
	}
	if len(states) == 0 {
		for s := int16(1); s <= last; s++ {
			l.States = append(l.States, s)
		}
	}
	return l, checkPage(scope, limit)
}

// Check refuses what no store answers.
func (q *AuditQuery) Check() error {
	if q.From < 0 || q.Until < 0 || q.Until != 0 && q.Until < q.From {
		return invalid("audit", "from %d until %d is no range", q.From, q.Until)
	}
	return checkPage(q.Scope, q.Limit)
}

func checkPage(s Scope, limit int) error {
	if !s.platform && (s.tenant < 1 || s.tenant > TenantIDMax) {
		return invalid("scope", "names neither a tenant nor the platform")
	}
	if limit < 1 || limit > PageMax {
		return invalid("limit", "is %d; it is 1–%d", limit, PageMax)
	}
	return nil
}
