package dialect

// A rule is about what CockroachDB's parser accepts and its server does not, or
// takes for something else than PostgreSQL does. check returns what is wrong with
// a statement. Every rule has a fixture in fixtures_*_test.go.
type rule struct {
	name  string
	check func(s statement) []string
}

var rules = []rule{
	{"statement-kind", checkKind},

	// rules_write_test.go: statements that change rows
	{"one-mutation-per-table", checkOneMutation},
	{"mutation-at-top", checkMutationAtTop},
	{"conflict-target", checkConflictTarget},
	{"write-by-key", checkWriteByKey},
	{"mutation-order", checkMutationOrder},

	// rules_read_test.go: expressions and clauses
	{"no-star", checkNoStar},
	{"no-locking", checkNoLocking},
	{"functions", checkFunctions},
	{"cast-at-first-use", checkFirstCast},
	{"casts-agree", checkCastsAgree},
	{"types", checkTypes},
	{"system-columns", checkSystemColumns},
	{"collate", checkCollate},
	{"division", checkDivision},
	{"nulls-order", checkNullsOrder},

	// rules_ddl_test.go: the schema
	{"guarded-ddl", checkGuardedDDL},
	{"primary-key", checkPrimaryKey},
	{"generated-keys", checkGeneratedKeys},

	// rules_ddl_test.go: what only CockroachDB has
	{"upsert", checkUpsert},
	{"as-of-system-time", checkAsOf},
	{"family", checkFamily},
	{"storing", checkStoring},
	{"using-hash", checkUsingHash},
}

// finding is one fault of one file.
type finding struct{ file, rule, text string }

func (f finding) String() string { return f.file + ": " + f.text + " [" + f.rule + "]" }

// lint applies all rules to all files.
func lint(files []*sqlFile) []finding {
	var found []finding
	for _, f := range files {
		for _, r := range fileRules {
			for _, text := range r.check(f, files) {
				found = append(found, finding{f.path, r.name, text})
			}
		}
		for _, s := range f.statements {
			for _, r := range rules {
				for _, text := range r.check(s) {
					found = append(found, finding{f.path, r.name, text})
				}
			}
		}
	}
	return found
}
