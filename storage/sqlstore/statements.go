package sqlstore

import (
	"embed"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
)

// Migrations is the schema, for package migrate.
//
//go:embed migrations/*.sql
var Migrations embed.FS

//go:embed queries/*.sql
var queryFiles embed.FS

// The statements, by their files.
var (
	sqlInsert          = statement("insert")
	sqlInsertAlike     = statement("insert_alike")
	sqlGet             = statement("get")
	sqlBodies          = statement("bodies")
	sqlBodyPut         = statement("body_put")
	sqlBodyDelete      = statement("body_delete")
	sqlComplete        = statement("complete")
	sqlExtend          = statement("extend")
	sqlRelease         = statement("release")
	sqlBeginAnew       = statement("begin_anew")
	sqlTakeOver        = statement("take_over")
	sqlRenew           = statement("renew")
	sqlRecordOwn       = statement("record_own")
	sqlPutInDoubt      = statement("put_in_doubt")
	sqlResolveComplete = statement("resolve_complete")
	sqlResolveRetry    = statement("resolve_retry")
	sqlForget          = statement("forget")
	sqlSweepOldest     = statement("sweep_oldest")
	sqlSweepDelete     = statement("sweep_delete")
	sqlList            = statement("list")
	sqlListHorizon     = statement("list_horizon")
	sqlTally           = statement("tally")
	sqlPurge           = statement("purge")
	sqlPurgeBodies     = statement("purge_bodies")
	sqlScan            = statement("scan")
	sqlClock           = statement("clock")
	sqlSweepScan       = statement("sweep_scan")
	sqlReady           = statement("ready")
	sqlSize            = statement("size")

	sqlRegistryMetaSeed  = statement("registry_meta_seed")
	sqlRegistryMetaNext  = statement("registry_meta_next")
	sqlRegistryProof     = statement("registry_proof")
	sqlRegistryRowsGet   = statement("registry_rows_get")
	sqlRegistryLabels    = statement("registry_labels")
	sqlRegistryRowsPut   = statement("registry_rows_put")
	sqlRegistryRowsDrop  = statement("registry_rows_drop")
	sqlRegistryAuditPut  = statement("registry_audit_put")
	sqlRegistryLoad      = statement("registry_load")
	sqlRegistryList      = statement("registry_list")
	sqlRegistryListAll   = statement("registry_list_all")
	sqlRegistryAudit     = statement("registry_audit")
	sqlRegistryAuditAll  = statement("registry_audit_all")
	sqlRegistrySeenPut   = statement("registry_seen_put")
	sqlRegistrySeen      = statement("registry_seen")
	sqlRegistryLease     = statement("registry_lease")
	sqlRegistryLeaseGet  = statement("registry_lease_get")
	sqlRegistryLeaseSave = statement("registry_lease_save")
	sqlRegistryLeaseEnd  = statement("registry_lease_end")
	sqlRegistryLeases    = statement("registry_leases")
)

// text is a statement in the words of each dialect; it is empty where a dialect
// has none.
type text struct{ cockroach, postgres string }

func (t text) of(d Dialect) string {
	if d == Cockroach {
		return t.cockroach
	}
	return t.postgres
}

// statement returns the text of a file without its comment, or of the files
// name.cockroach.sql and name.postgres.sql. The files are part of the program:
// a missing one is found by every test.
func statement(name string) text {
	both, err := fileText(name)
	if err == nil {
		return text{cockroach: both, postgres: byShard(both)}
	}
	var t text
	t.cockroach, err = fileText(name + "." + string(Cockroach))
	postgres, err2 := fileText(name + "." + string(Postgres))
	if err != nil && err2 != nil {
		panic(fmt.Sprintf("sqlstore: no statement %s: %v", name, err))
	}
	t.postgres = byShard(postgres)
	return t
}

func fileText(name string) (string, error) {
	raw, err := fs.ReadFile(queryFiles, "queries/"+name+".sql")
	if err != nil {
		return "", err
	}
	var body []string
	for line := range strings.Lines(string(raw)) {
		if !strings.HasPrefix(line, "--") {
			body = append(body, line)
		}
	}
	return strings.TrimSpace(strings.Join(body, "")), nil
}

// shardJoin is a join on the first column of the primary key.
var shardJoin = regexp.MustCompile(`\b([cr])\.shard = ([ir])\.shard\b`)

// byShard says the same in a way that leaves PostgreSQL no plan but to look
// keys up. An equality between two columns makes it consider reading the whole
// index in order, to merge; while its statistics say that the table is empty
// that looks cheaper, and a connection keeps its plans until the statistics
// change, however large the table is by then. CockroachDB needs the equality to
// look keys up, and has a setting of its own against full scans.
func byShard(sql string) string {
	return shardJoin.ReplaceAllString(sql, "$1.shard = ANY (ARRAY[$2.shard])")
}
