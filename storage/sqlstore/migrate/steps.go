package migrate

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strconv"
	"strings"
)

// Dialect is a database's own SQL, as in the name of a file.
type Dialect string

// The dialects there are.
const (
	Postgres  Dialect = "postgres"
	Cockroach Dialect = "cockroach"
)

// Step is one statement of one file.
type Step struct {
	Version   int64  // the file's number, from 1; the same in every dialect
	Statement int64  // within the file, from 1
	File      string // the file's name
	SQL       string // without comments and semicolon; empty where the dialect has nothing to do
	SHA256    [sha256.Size]byte
	last      bool // of its file: with it the schema has Version
}

// ID is the step's stable name, such as 003.2.
func (s Step) ID() string { return fmt.Sprintf("%03d.%d", s.Version, s.Statement) }

// position is how far a schema is: all of the files up to version, and the
// first statements of the one after it.
type position struct{ version, statement int64 }

func (p position) covers(s Step) bool {
	return s.Version <= p.version || s.Version == p.version+1 && s.Statement <= p.statement
}

func before(s Step) position { return position{s.Version - 1, s.Statement - 1} }

func after(s Step) position {
	if s.last {
		return position{s.Version, 0}
	}
	return position{s.Version - 1, s.Statement}
}

// Load reads the migrations in the root of files for one dialect. A file is
// NNN_name.sql; or NNN_name.postgres.sql beside NNN_name.cockroach.sql; or one
// of these two with a line `-- only: why`, which is a step without a statement
// in the other dialect, so that a version means the same everywhere. Numbers
// begin at 001 and have no gaps. It reports all faults of all files at once.
func Load(files fs.FS, dialect Dialect) ([]Step, error) {
	if dialect != Postgres && dialect != Cockroach {
		return nil, fmt.Errorf("load migrations: no dialect %q", dialect)
	}
	versions, err := readFiles(files)
	if err != nil {
		return nil, fmt.Errorf("load migrations: %w", err)
	}
	var steps []Step
	var faults []error
	for i, group := range versions {
		if err := checkGroup(group); err != nil {
			faults = append(faults, err)
			continue
		}
		statements, name := []string{""}, group[0].name
		for _, f := range group { // also those of the other dialect, for their faults
			found, err := parse(f.text)
			if err != nil {
				faults = append(faults, fmt.Errorf("%s: %w", f.name, err))
			}
			if f.dialect == "" || f.dialect == dialect {
				statements, name = found, f.name
			}
		}
		for n, sql := range statements {
			steps = append(steps, Step{
				Version: int64(i) + 1, Statement: int64(n) + 1, File: name,
				SQL: sql, SHA256: sha256.Sum256([]byte(sql)), last: n == len(statements)-1,
			})
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, fmt.Errorf("load migrations: %w", err)
	}
	return steps, nil
}

type file struct {
	name    string // 003_more.postgres.sql
	base    string // 003_more
	dialect Dialect
	text    string
	only    bool // it has no twin
}

var (
	fileName = regexp.MustCompile(`^((\d{3})_[a-z0-9_]+)(?:\.(postgres|cockroach))?\.sql$`)
	onlyLine = regexp.MustCompile(`(?m)^-- only: \S`)
)

// readFiles returns the files of every version, in order.
func readFiles(files fs.FS) ([][]file, error) {
	entries, err := fs.ReadDir(files, ".") // sorted by name
	if err != nil {
		return nil, err
	}
	var versions [][]file
	for _, e := range entries {
		parts := fileName.FindStringSubmatch(e.Name())
		if parts == nil || e.IsDir() {
			return nil, fmt.Errorf("%s: not NNN_name.sql, NNN_name.postgres.sql or NNN_name.cockroach.sql", e.Name())
		}
		text, err := fs.ReadFile(files, e.Name())
		if err != nil {
			return nil, err
		}
		f := file{name: e.Name(), base: parts[1], dialect: Dialect(parts[3]), text: string(text), only: onlyLine.Match(text)}
		switch number, _ := strconv.Atoi(parts[2]); number { // the pattern took care of errors
		case len(versions) + 1:
			versions = append(versions, []file{f})
		case len(versions):
			if number == 0 {
				return nil, fmt.Errorf("%s: numbers begin at 001", f.name)
			}
			versions[number-1] = append(versions[number-1], f)
		default:
			return nil, fmt.Errorf("%s: expected number %03d", f.name, len(versions)+1)
		}
	}
	if len(versions) == 0 {
		return nil, errors.New("no files")
	}
	return versions, nil
}

// checkGroup says whether the files of one number are one migration.
func checkGroup(group []file) error {
	a, b := group[0], group[len(group)-1]
	switch {
	case len(group) == 1 && a.dialect == "" && a.only:
		return fmt.Errorf("%s: `-- only:` in a file for every dialect", a.name)
	case len(group) == 1 && a.dialect != "" && !a.only:
		return fmt.Errorf("%s: no twin for the other dialect, and no line `-- only: why`", a.name)
	case len(group) == 1:
		return nil
	case len(group) > 2 || a.base != b.base || a.dialect == "" || b.dialect == "":
		return fmt.Errorf("%s and %s: two migrations have one number", a.name, b.name)
	case a.only || b.only:
		return fmt.Errorf("%s and %s: `-- only:` in one of two twins", a.name, b.name)
	}
	return nil
}

// parse returns the statements of a file that follows the rules.
func parse(text string) ([]string, error) {
	statements, err := split(text)
	if err != nil {
		return nil, err
	}
	if len(statements) == 0 {
		return nil, errors.New("no statement")
	}
	var ddl, data int
	for _, sql := range statements {
		isData, err := check(sql)
		if err != nil {
			return nil, err
		}
		if isData {
			data++
		} else {
			ddl++
		}
	}
	if ddl > 0 && data > 0 {
		return nil, errors.New("changes the schema and changes rows: make two files of it")
	}
	return statements, nil
}

// What may be run twice, as far as its words tell.
var (
	ddlStatement  = regexp.MustCompile(`^(CREATE TABLE IF NOT EXISTS|CREATE (UNIQUE )?INDEX IF NOT EXISTS|DROP (TABLE|INDEX) IF EXISTS|ALTER TABLE) `)
	dataStatement = regexp.MustCompile(`^(INSERT INTO .* ON CONFLICT .*DO NOTHING|UPDATE .* WHERE .*)$`)
	guarded       = regexp.MustCompile(`\b(ADD (COLUMN|CONSTRAINT) IF NOT EXISTS|DROP (COLUMN|CONSTRAINT) IF EXISTS|DROP (NOT NULL|DEFAULT))\b`)
	unguarded     = regexp.MustCompile(`\b(ADD|DROP|RENAME)\b`)
	concurrently  = regexp.MustCompile(`\bCONCURRENTLY\b`)
)

// check refuses statements that are seen not to bear being run twice, and says
// whether sql changes rows and not the schema.
func check(sql string) (isData bool, err error) {
	words := strings.Join(strings.Fields(strings.ToUpper(sql)), " ")
	head := words[:min(len(words), 40)]
	switch {
	case concurrently.MatchString(words):
		return false, fmt.Errorf("%s…: CONCURRENTLY leaves an invalid index behind when it is interrupted, which IF NOT EXISTS then takes for a good one", head)
	case dataStatement.MatchString(words):
		return true, nil
	case !ddlStatement.MatchString(words):
		return false, fmt.Errorf("%s…: a step is CREATE TABLE/INDEX IF NOT EXISTS, DROP TABLE/INDEX IF EXISTS, ALTER TABLE, INSERT … ON CONFLICT … DO NOTHING or UPDATE … WHERE", head)
	case strings.HasPrefix(words, "ALTER") && unguarded.MatchString(guarded.ReplaceAllString(words, "")):
		return false, fmt.Errorf("%s…: fails when it is run twice: ADD needs IF NOT EXISTS, DROP needs IF EXISTS, and RENAME cannot", head)
	}
	return false, nil
}
