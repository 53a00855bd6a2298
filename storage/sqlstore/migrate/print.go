package migrate

import (
	_ "embed" // the statements
	"fmt"
	"io"
	"strconv"
	"strings"
)

//go:embed queries/print_fence.sql
var printFence string

//go:embed queries/print_record.sql
var printRecord string

const printHead = `-- Warifu schema, %s, steps %s to %s.
--
-- Run it in autocommit mode and stop at the first error: what follows a statement
-- records that it ran. Running it again is safe, and so is ` + "`warifu migrate up`" + `
-- after it. A migrator that runs meanwhile loses its lease and stops.
`

// Print writes steps as a script that leaves what Up leaves, for databases that
// others look after: all steps, or Status.Pending of the database in question.
func Print(w io.Writer, dialect Dialect, steps []Step) error {
	if len(steps) == 0 {
		return nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, printHead, dialect, steps[0].ID(), steps[len(steps)-1].ID())
	if dialect == Postgres {
		b.WriteString("\\set ON_ERROR_STOP on\n") // `cockroach sql` stops by itself
	}
	statements := []string{createSteps, createSchema, insertRow, printFence}
	for _, sql := range statements {
		if err := printBare(&b, sql); err != nil {
			return err
		}
	}
	for _, s := range steps {
		fmt.Fprintf(&b, "\n-- Step %s, %s\n", s.ID(), s.File)
		if s.SQL != "" {
			b.WriteString(s.SQL + ";\n")
		}
		from, to := before(s), after(s)
		record := inline(printRecord, number(to.version), number(to.statement), number(from.version), number(from.statement),
			number(s.Version), number(s.Statement), "'"+s.File+"'", fmt.Sprintf("decode('%x', 'hex')", s.SHA256))
		if err := printBare(&b, record); err != nil {
			return err
		}
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("print migrations: %w", err)
	}
	return nil
}

// printBare writes our own statement without the comments that are for us.
func printBare(b *strings.Builder, text string) error {
	statements, err := split(text)
	if err != nil {
		return fmt.Errorf("print migrations: %w", err)
	}
	b.WriteString("\n" + strings.Join(statements, ";\n") + ";\n")
	return nil
}

// inline puts literals in the place of placeholders. They are numbers, hex and
// names of files, whose pattern has no quote.
func inline(sql string, literals ...string) string {
	for i := len(literals); i > 0; i-- { // $10 before $1
		sql = strings.ReplaceAll(sql, "$"+strconv.Itoa(i), literals[i-1])
	}
	return sql
}

func number(n int64) string { return strconv.FormatInt(n, 10) }
