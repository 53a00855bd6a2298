package sqlstore

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Plan is how the database would run one of the store's statements.
type Plan struct {
	Statement string // the name of its file
	// FullScans are tables and indexes of claims that are read whole. There
	// should be none.
	FullScans []string
	// WideScans are indexes of claims of which more is read than the keys and
	// ranges that are asked for. PostgreSQL prefers that while a table is nearly
	// empty; later there should be none. CockroachDB's plans do not say.
	WideScans []string
	Err       error // the plan could not be had, or not be read
}

// scans are what a plan reads more of than it should.
type scans struct{ full, wide []string }

// Planned are the plans of all statements.
type Planned struct {
	Plans []Plan
	// ClaimsBytes is the size of the table they were made for; -1 where the
	// database does not say.
	ClaimsBytes int64
}

// Plans asks for the plan of every statement that the store runs on claims. On
// PostgreSQL it is the generic plan, which is what the store's connections use;
// on CockroachDB the one for a few example keys. Nothing is executed.
func Plans(ctx context.Context, c Config) (Planned, error) {
	c, err := c.withDefaults()
	if err != nil {
		return Planned{}, fmt.Errorf("sqlstore: %w", err)
	}
	out := Planned{ClaimsBytes: -1}
	err = onConn(ctx, c, func(ctx context.Context, conn *pgx.Conn) error {
		dialect, explain := announced(conn.PgConn()), explainPostgres
		if dialect == Cockroach {
			explain = explainCockroach
		} else if err := conn.QueryRow(ctx, "SELECT pg_relation_size('claims')").Scan(&out.ClaimsBytes); err != nil {
			return fmt.Errorf("sqlstore: read the size of claims: %w", err)
		}
		for _, name := range planned(dialect) {
			p := Plan{Statement: name}
			found, err := explain(ctx, conn, statement(name).of(dialect))
			p.FullScans, p.WideScans, p.Err = found.full, found.wide, err
			out.Plans = append(out.Plans, p)
			if p.Err != nil && conn.IsClosed() {
				return fmt.Errorf("sqlstore: plan of %s: %w", name, p.Err)
			}
		}
		return nil
	})
	return out, err
}

// planned are the names of all statements of a dialect that read or write
// tables of claims: a new file is among them.
func planned(d Dialect) []string {
	files, err := fs.Glob(queryFiles, "queries/*.sql")
	if err != nil {
		panic(fmt.Sprintf("sqlstore: %v", err)) // the pattern is a constant
	}
	var names []string
	for _, f := range files {
		name, _, _ := strings.Cut(strings.TrimPrefix(f, "queries/"), ".")
		if readsClaims.MatchString(statement(name).of(d)) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

var readsClaims = regexp.MustCompile(`\b(FROM|JOIN|INTO|UPDATE)\s+(claims|claim_results)\b`)

// isClaims reports whether a table or an index is one of those that grow.
func isClaims(name string) bool {
	table, _, _ := strings.Cut(name, "@")
	return strings.HasPrefix(table, "claims") || strings.HasPrefix(table, "claim_results")
}

var parameters = regexp.MustCompile(`\$(\d+)(?:::([A-Z0-9]+(?:\[\])?))?`)

// parameterTypes are the types of a statement's parameters, from $1. Each is
// cast where it stands first.
func parameterTypes(sql string) []string {
	var types []string
	for _, m := range parameters.FindAllStringSubmatch(sql, -1) {
		n, _ := strconv.Atoi(m[1]) // the pattern has digits only
		for len(types) < n {
			types = append(types, "")
		}
		if types[n-1] == "" {
			types[n-1] = m[2]
		}
	}
	return types
}

// explainPostgres prepares the statement and asks for the plan that does not
// look at values: PostgreSQL has no other way to that before version 16. The
// connection has plan_cache_mode force_generic_plan, as all of the store's.
func explainPostgres(ctx context.Context, conn *pgx.Conn, sql string) (found scans, err error) {
	const name = "warifu_plan"
	if _, err := conn.Exec(ctx, "PREPARE "+name+" AS "+sql); err != nil {
		return scans{}, err
	}
	defer func() {
		_, cleared := conn.Exec(ctx, "DEALLOCATE "+name)
		err = errors.Join(err, cleared)
	}()
	execute := "EXECUTE " + name
	if n := len(parameterTypes(sql)); n > 0 {
		execute += "(NULL" + strings.Repeat(", NULL", n-1) + ")"
	}
	var text string
	if err := conn.QueryRow(ctx, "EXPLAIN (FORMAT JSON) "+execute, pgx.QueryExecModeSimpleProtocol).Scan(&text); err != nil {
		return scans{}, err
	}
	return postgresScans(text)
}

// planNode is what is read of a node of a PostgreSQL plan.
type planNode struct {
	Type  string     `json:"Node Type"`
	Table string     `json:"Relation Name"`
	Index string     `json:"Index Name"`
	Cond  string     `json:"Index Cond"`
	Below []planNode `json:"Plans"`
}

// postgresScans reads a plan. A text that is not one is an error, never a good
// plan.
func postgresScans(text string) (found scans, err error) {
	var explained []struct{ Plan planNode }
	if err := json.Unmarshal([]byte(text), &explained); err != nil {
		return scans{}, fmt.Errorf("read the plan: %w", err)
	}
	if len(explained) != 1 || explained[0].Plan.Type == "" {
		return scans{}, errors.New("read the plan: it has no node")
	}
	explained[0].Plan.walk(func(n *planNode) {
		switch n.Type {
		case "Seq Scan", "Sample Scan":
			if isClaims(n.Table) {
				found.full = append(found.full, n.Table)
			}
		case "Index Scan", "Index Only Scan", "Bitmap Index Scan":
			// All indexes begin with the shard, of which there are few.
			byShard, further := shardColumn.MatchString(n.Cond), furtherColumn.MatchString(n.Cond)
			switch {
			case !isClaims(n.Index), byShard && further:
			case n.Cond == "":
				found.full = append(found.full, n.Index)
			default:
				found.wide = append(found.wide, n.Index)
			}
		}
	})
	return found.sorted(), nil
}

var (
	shardColumn   = regexp.MustCompile(`\b(expiry_)?shard\b`)
	furtherColumn = regexp.MustCompile(`\b(tenant_id|expires_at)\b`)
)

func (s scans) sorted() scans {
	slices.Sort(s.full)
	slices.Sort(s.wide)
	return scans{slices.Compact(s.full), slices.Compact(s.wide)}
}

func (n *planNode) walk(visit func(*planNode)) {
	visit(n)
	for i := range n.Below {
		n.Below[i].walk(visit)
	}
}

// examples are values for the plans of CockroachDB, which are made for values:
// two keys, so that neither "no row" nor "one row" is planned.
var examples = map[string]string{
	"INT2": "1", "INT8": "1", "TEXT": "a", "TIMESTAMPTZ": "2026-01-01 00:00:00+00", "INTERVAL": "1 second",
	"INT2[]": "{0,1}", "INT8[]": "{0,1}", "TEXT[]": "{a,b}", "BYTEA[]": "{a,b}", "BOOL[]": "{true,false}",
	"UUID[]":        "{00000000-0000-4000-8000-000000000001,00000000-0000-4000-8000-000000000002}",
	"TIMESTAMPTZ[]": `{"2026-01-01 00:00:00+00","2026-01-02 00:00:00+00"}`,
	"INTERVAL[]":    `{"1 second","2 seconds"}`,
}

// withExamples puts example values in the place of parameters.
func withExamples(sql string) (string, error) {
	types := parameterTypes(sql)
	for i, t := range types {
		if examples[t] == "" {
			return "", fmt.Errorf("no example of $%d, whose type is %q", i+1, t)
		}
	}
	return parameters.ReplaceAllStringFunc(sql, func(use string) string {
		m := parameters.FindStringSubmatch(use)
		n, _ := strconv.Atoi(m[1]) // the pattern has digits only
		return "CAST('" + examples[types[n-1]] + "' AS " + types[n-1] + ")"
	}), nil
}

func explainCockroach(ctx context.Context, conn *pgx.Conn, sql string) (scans, error) {
	sql, err := withExamples(sql)
	if err != nil {
		return scans{}, err
	}
	rows, err := conn.Query(ctx, "EXPLAIN "+sql, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		return scans{}, err
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return scans{}, err
	}
	return cockroachScans(strings.Join(lines, "\n"))
}

var (
	cockroachTable = regexp.MustCompile(`\btable: (\S+)`)
	cockroachFull  = regexp.MustCompile(`\bspans: FULL SCAN\b`)
	cockroachPlan  = regexp.MustCompile(`(?m)^distribution: |• `)
)

// cockroachScans reads a plan, whose text names what is read as table@index, and
// behind it what of that. A text that is not a plan is an error.
func cockroachScans(text string) (found scans, err error) {
	if !cockroachPlan.MatchString(text) {
		return scans{}, errors.New("read the plan: the text is not one of CockroachDB's plans")
	}
	table := "claims" // a full scan of something unnamed is not a good plan
	for line := range strings.Lines(text) {
		if strings.Contains(line, "• ") {
			table = "claims"
		}
		if m := cockroachTable.FindStringSubmatch(line); m != nil {
			table = m[1]
		}
		if cockroachFull.MatchString(line) && isClaims(table) {
			found.full = append(found.full, table)
		}
	}
	return found.sorted(), nil
}

// tlsVersion is empty for a connection without TLS.
func tlsVersion(c net.Conn) string {
	if secure, ok := c.(*tls.Conn); ok {
		return tls.VersionName(secure.ConnectionState().Version)
	}
	return ""
}
