package sqlstore

import (
	"slices"
	"strings"
	"testing"
)

// Plans of PostgreSQL 15.18, as it printed them, less the fields that nobody
// reads: of get with all indexes, of get without its primary key, and of
// sweep_delete and body_delete on an empty table whose second index began with
// shard too.
const (
	planGet = `[{"Plan": {"Node Type": "Nested Loop", "Join Type": "Left", "Inner Unique": true, "Plans": [
  {"Node Type": "Function Scan", "Parent Relationship": "Outer", "Alias": "i"},
  {"Node Type": "Index Scan", "Parent Relationship": "Inner", "Scan Direction": "Forward", "Index Name": "claims_pkey", "Relation Name": "claims", "Alias": "c",
   "Index Cond": "((shard = i.shard) AND (tenant_id = i.tenant_id) AND (consumer = i.consumer) AND (event_id = i.event_id))"}]}}]`
	planGetWithoutKey = `[{"Plan": {"Node Type": "Nested Loop", "Join Type": "Left", "Inner Unique": false,
  "Join Filter": "((c.shard = i.shard) AND (c.tenant_id = i.tenant_id) AND (c.consumer = i.consumer) AND (c.event_id = i.event_id))", "Plans": [
  {"Node Type": "Function Scan", "Parent Relationship": "Outer", "Alias": "i"},
  {"Node Type": "Materialize", "Parent Relationship": "Inner", "Plans": [
   {"Node Type": "Seq Scan", "Parent Relationship": "Outer", "Relation Name": "claims", "Alias": "c"}]}]}}]`
	planSweepDelete = `[{"Plan": {"Node Type": "ModifyTable", "Operation": "Delete", "Relation Name": "claims", "Alias": "c", "Plans": [
  {"Node Type": "Nested Loop", "Join Type": "Semi", "Plans": [
   {"Node Type": "Bitmap Heap Scan", "Relation Name": "claims", "Alias": "c", "Recheck Cond": "(expires_at <= ($1 - $6))", "Plans": [
    {"Node Type": "Bitmap Index Scan", "Index Name": "claims_expiry_idx", "Index Cond": "(expires_at <= ($1 - $6))"}]},
   {"Node Type": "Function Scan", "Alias": "i"}]}]}}]`
	planBodyDelete = `[{"Plan": {"Node Type": "ModifyTable", "Operation": "Delete", "Relation Name": "claim_results", "Alias": "r", "Plans": [
  {"Node Type": "Nested Loop", "Join Type": "Anti", "Plans": [
   {"Node Type": "Index Scan", "Index Name": "claim_results_pkey", "Relation Name": "claim_results", "Alias": "r",
    "Index Cond": "((shard = i.shard) AND (tenant_id = i.tenant_id) AND (consumer = (i.consumer)::text) AND (event_id = (i.event_id)::text))"},
   {"Node Type": "Index Scan", "Index Name": "claims_expiry_idx", "Relation Name": "claims", "Alias": "c", "Index Cond": "(shard = r.shard)"}]}]}}]`
)

func TestPostgresScans(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, text string
		full, wide []string
	}{
		{"by key", planGet, nil, nil},
		{"by nothing", planGetWithoutKey, []string{"claims"}, nil},
		{"by expiry without the shard", planSweepDelete, nil, []string{"claims_expiry_idx"}},
		{"by shard alone", planBodyDelete, nil, []string{"claims_expiry_idx"}},
		{"all of an index", strings.Replace(planGet, `"Index Cond"`, `"Filter"`, 1), []string{"claims_pkey"}, nil},
		{"the expiry index in order", strings.NewReplacer("claims_pkey", "claims_expiry_idx", "(shard = i.shard)", "(expiry_shard = $3)", "tenant_id = i.tenant_id", "expires_at <= $1").Replace(planGet), nil, nil},
		{"another table", strings.Replace(planGetWithoutKey, `"claims"`, `"pg_class"`, 1), nil, nil},
	} {
		got, err := postgresScans(c.text)
		if err != nil || !slices.Equal(got.full, c.full) || !slices.Equal(got.wide, c.wide) {
			t.Errorf("%s: %+v, %v; want %v and %v", c.name, got, err, c.full, c.wide)
		}
	}
	for _, text := range []string{"", "[]", "{}", "[{}]", `[{"Plan": {}}]`, "Nested Loop  (cost=0.14..8.2)", planGet + "x"} {
		if got, err := postgresScans(text); err == nil {
			t.Errorf("%q was taken for a plan: %+v", text, got)
		}
	}
}

// Plans of CockroachDB, written by hand after its documentation of EXPLAIN:
// there is no CockroachDB where these tests run, and nobody has captured them.
const (
	cockroachGet = `distribution: local
vectorized: true

• lookup join (left outer)
│ estimated row count: 2
│ table: claims@claims_pkey
│ equality: (shard, tenant_id, consumer, event_id) = (shard, tenant_id, consumer, event_id)
│ equality cols are key
│
└── • project set
    │ estimated row count: 2
    │
    └── • emptyrow`
	cockroachInsert = `distribution: full
vectorized: true

• insert
│ into: claims(shard, tenant_id, consumer, event_id)
│ auto commit
│ arbiter indexes: claims_pkey
│
└── • hash join (right anti)
    │ equality: (shard, tenant_id) = (shard, tenant_id)
    │
    ├── • scan
    │     missing stats
    │     table: claims@claims_pkey
    │     spans: FULL SCAN
    │
    └── • project set`
	cockroachSweep = `distribution: local
vectorized: true

• scan
  table: claims@claims_expiry_idx
  spans: [/1/'2026-01-01 00:00:00+00:00' - /1/'2026-01-02 00:00:00+00:00']
  limit: 1000`
)

func TestCockroachScans(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, text string
		full       []string
	}{
		{"look-up", cockroachGet, nil},
		{"a range", cockroachSweep, nil},
		{"the arbiter check reads all", cockroachInsert, []string{"claims@claims_pkey"}},
		{"all, with a soft limit", strings.Replace(cockroachInsert, "FULL SCAN", "FULL SCAN (SOFT LIMIT)", 1), []string{"claims@claims_pkey"}},
		{"all of an index", strings.Replace(cockroachSweep, "[/1/", "FULL SCAN [", 1), []string{"claims@claims_expiry_idx"}},
		{"all of another table", strings.ReplaceAll(cockroachInsert, "table: claims@claims_pkey", "table: jobs@primary"), nil},
		{"all of something unnamed", strings.Replace(cockroachInsert, "    │     table: claims@claims_pkey\n", "", 1), []string{"claims"}},
	} {
		got, err := cockroachScans(c.text)
		if err != nil || !slices.Equal(got.full, c.full) || got.wide != nil {
			t.Errorf("%s: %+v, %v; want %v", c.name, got, err, c.full)
		}
	}
	for _, text := range []string{"", "Index Scan using claims_pkey on claims c", "spans: FULL SCAN"} {
		if got, err := cockroachScans(text); err == nil {
			t.Errorf("%q was taken for a plan: %+v", text, got)
		}
	}
}

// TestPlanned: no statement on claims is left out, in no dialect.
func TestPlanned(t *testing.T) {
	t.Parallel()
	for _, d := range []Dialect{Postgres, Cockroach} {
		got := planned(d)
		want := []string{
			"begin_anew", "bodies", "body_delete", "body_put", "complete", "extend", "forget", "get", "insert", "insert_alike", "list", "list_horizon",
			"purge", "purge_bodies", "put_in_doubt", "record_own", "release", "renew", "resolve_complete", "resolve_retry", "scan", "sweep_delete", "sweep_oldest", "sweep_scan", "take_over", "tally",
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", d, got, want)
		}
		for _, name := range got {
			sql, err := withExamples(statement(name).of(d))
			if err != nil || strings.Contains(sql, "$") {
				t.Errorf("%s with examples: %v, %s", name, err, sql)
			}
		}
	}
}

func TestParameters(t *testing.T) {
	t.Parallel()
	const sql = "SELECT $2::TEXT[], $1::INT8 WHERE $1 > 2 AND $11::BOOL[] IS NULL"
	types := parameterTypes(sql)
	if len(types) != 11 || types[0] != "INT8" || types[1] != "TEXT[]" || types[2] != "" || types[10] != "BOOL[]" {
		t.Errorf("%q", types)
	}
	if got, err := withExamples(sql); err == nil {
		t.Errorf("a parameter without a type: %s", got)
	}
	got, err := withExamples("SELECT $2::TEXT[], $1::INT8 WHERE $1 > 2")
	if err != nil || got != "SELECT CAST('{a,b}' AS TEXT[]), CAST('1' AS INT8) WHERE CAST('1' AS INT8) > 2" {
		t.Errorf("%s, %v", got, err)
	}
}
