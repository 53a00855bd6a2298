package dialect

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/cockroachdb/cockroachdb-parser/pkg/sql/parser"
	"github.com/cockroachdb/cockroachdb-parser/pkg/sql/parser/statements"
	"github.com/cockroachdb/cockroachdb-parser/pkg/sql/sem/tree"
	"github.com/cockroachdb/cockroachdb-parser/pkg/sql/types"
)

// sqlFile is one *.sql file. A file for PostgreSQL alone has no statements here.
type sqlFile struct {
	path       string // queries/name.cockroach.sql
	base       string // queries/name
	dialect    string // "postgres", "cockroach", or "" for both
	text       string
	statements []statement
	parseError error
}

// statement is what a rule looks at.
type statement struct {
	file   *sqlFile
	ast    tree.Statement
	tokens []parser.TokenString // in the order of the text, which the tree has not
	schema schema
}

// portable says whether PostgreSQL gets the statement too.
func (s statement) portable() bool { return s.file.dialect == "" }

// migration files change the schema; all others hold one query.
func (f *sqlFile) migration() bool { return path.Base(path.Dir(f.path)) == "migrations" }

// load reads and parses all *.sql files, but those of tests.
func load(files fs.FS) ([]*sqlFile, error) {
	var found []*sqlFile
	err := fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && entry.Name() == "testdata" {
			return fs.SkipDir
		}
		if entry.IsDir() || path.Ext(name) != ".sql" {
			return nil
		}
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		found = append(found, newFile(name, string(text)))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the SQL files: %w", err)
	}
	shared := schemaOf(found)
	for _, f := range found {
		for i := range f.statements {
			f.statements[i].schema = shared
		}
	}
	return found, nil
}

func newFile(name, text string) *sqlFile {
	f := &sqlFile{path: name, text: text, base: strings.TrimSuffix(name, ".sql")}
	for _, dialect := range []string{"postgres", "cockroach"} {
		if base, ok := strings.CutSuffix(f.base, "."+dialect); ok {
			f.base, f.dialect = base, dialect
		}
	}
	if f.dialect == "postgres" {
		return f
	}
	parsed, err := parse(text)
	if err != nil {
		f.parseError = err
		return f
	}
	for _, p := range parsed {
		tokens, ok := parser.Tokens(p.SQL)
		if !ok {
			f.parseError = fmt.Errorf("no tokens in %q", p.SQL)
		}
		f.statements = append(f.statements, statement{file: f, ast: p.AST, tokens: tokens})
	}
	return f
}

// parse reads INT without a size as INT4, which it is to PostgreSQL, so that it
// is told from INT8. The parser panics on what it needs the server for, as DO.
func parse(text string) (parsed statements.Statements, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("the parser panicked: %v", cause)
		}
	}()
	return parser.ParseWithInt(text, types.Int4)
}

// fileRules look at a file as a whole, and at those beside it.
var fileRules = []struct {
	name  string
	check func(f *sqlFile, all []*sqlFile) []string
}{
	{"parse", checkParse},
	{"one-statement", checkOneStatement},
	{"why", checkWhy},
	{"twins", checkTwins},
	{"ddl-apart", checkDDLApart},
}

// checkParse: CockroachDB's grammar has it. This is also the rule for what never
// parses there: DO blocks, MERGE, LOCK, LISTEN, NOTIFY, VACUUM, COLLATE "C" of a
// column, deferrable constraints.
func checkParse(f *sqlFile, _ []*sqlFile) []string {
	if f.parseError != nil {
		return []string{fmt.Sprintf("is no SQL for CockroachDB: %v", f.parseError)}
	}
	return nil
}

// checkOneStatement: a query is prepared, and PostgreSQL prepares one statement.
func checkOneStatement(f *sqlFile, _ []*sqlFile) []string {
	if f.dialect == "postgres" || f.parseError != nil {
		return nil
	}
	switch n := len(f.statements); {
	case n == 0:
		return []string{"has no statement"}
	case n > 1 && !f.migration():
		return []string{fmt.Sprintf("has %d statements, and a query is one", n)}
	}
	return nil
}

var (
	onlyLine = regexp.MustCompile(`(?m)^-- only: \S`)
	onlyMark = regexp.MustCompile(`(?m)^--\s*only:`)
	letter   = regexp.MustCompile(`\pL`)
)

// checkWhy: a file begins with a comment, which says why it is as it is. That it
// has no twin is not that reason.
func checkWhy(f *sqlFile, _ []*sqlFile) []string {
	for line := range strings.Lines(f.text) {
		comment, ok := strings.CutPrefix(line, "--")
		if !ok {
			break
		}
		if !onlyMark.MatchString(line) && letter.MatchString(comment) {
			return nil
		}
	}
	return []string{"does not begin with a `--` comment that says why"}
}

// checkTwins: a file for one dialect has one for the other beside it, or says
// why there is none; and a name never means two things.
func checkTwins(f *sqlFile, all []*sqlFile) []string {
	var dialects []string
	for _, other := range all {
		if other.base == f.base && other != f {
			dialects = append(dialects, other.dialect)
		}
	}
	only := onlyLine.MatchString(f.text)
	switch {
	case onlyMark.MatchString(f.text) && !only:
		return []string{"`-- only:` is followed by a blank and the reason"}
	case f.dialect == "" && only:
		return []string{"`-- only:` in a file for both dialects"}
	case f.dialect == "" && len(dialects) > 0:
		return []string{"a file for both dialects beside one for " + dialects[0]}
	case f.dialect != "" && len(dialects) == 0 && !only:
		return []string{"no twin for the other dialect, and no line `-- only: why`"}
	case f.dialect != "" && only && slices.ContainsFunc(dialects, func(d string) bool { return d != "" }):
		return []string{"`-- only:` in one of two twins"}
	}
	return nil
}

// checkDDLApart: CockroachDB commits before a schema change in the middle of a
// transaction, so the changes of rows before it are not undone with it.
func checkDDLApart(f *sqlFile, _ []*sqlFile) []string {
	var ddl, data bool
	for _, s := range f.statements {
		if s.ast.StatementType() == tree.TypeDDL {
			ddl = true
		} else {
			data = true
		}
	}
	if ddl && data {
		return []string{"changes the schema and reads or changes rows: make two files of it"}
	}
	return nil
}
