package sqlstore

import (
	"embed"
	"fmt"
	"io/fs"
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
	sqlSweepDelete     = statement("sweep_delete")
	sqlList            = statement("list")
	sqlListHorizon     = statement("list_horizon")
	sqlScan            = statement("scan")
	sqlClock           = statement("clock")
)

// Statements that the dialects word differently.
var (
	sqlSweepScan = map[Dialect]string{Cockroach: statement("sweep_scan.cockroach"), Postgres: statement("sweep_scan.postgres")}
	sqlSize      = statement("size.postgres")
)

// statement returns the text of a file without its comment. The files are part
// of the program: a missing one is found by every test.
func statement(name string) string {
	text, err := fs.ReadFile(queryFiles, "queries/"+name+".sql")
	if err != nil {
		panic(fmt.Sprintf("sqlstore: %v", err))
	}
	var body []string
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "--") {
			body = append(body, line)
		}
	}
	return strings.TrimSpace(strings.Join(body, ""))
}
