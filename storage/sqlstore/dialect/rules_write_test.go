package dialect

import (
	"fmt"
	"strings"

	"github.com/cockroachdb/cockroachdb-parser/pkg/sql/sem/tree"
)

// checkKind: only what both databases have and we use. So no SAVEPOINT (releases
// of CockroachDB lost writes behind one), no TRUNCATE, no CREATE TYPE, and no
// SET that outlives its transaction, which CockroachDB does not roll back.
func checkKind(s statement) []string {
	switch n := s.ast.(type) {
	case *tree.Select, *tree.Insert, *tree.Update, *tree.Delete:
		return nil
	case *tree.CreateTable:
		if n.As() {
			return []string{"CREATE TABLE AS: list the columns"}
		}
		return nil
	case *tree.CreateIndex, *tree.AlterTable, *tree.DropTable, *tree.DropIndex:
		return nil
	case *tree.SetVar:
		if n.Local {
			return nil
		}
	}
	return []string{s.ast.StatementTag() + " is not a kind of statement that is used here"}
}

// checkOneMutation: CockroachDB refuses a second change of a table when it plans,
// and PostgreSQL does not. It allows several plain INSERTs; nothing here needs it.
func checkOneMutation(s statement) []string {
	var found []string
	count := map[string]int{}
	for _, m := range mutationsOf(s.ast) {
		if count[m.table]++; count[m.table] == 2 {
			found = append(found, fmt.Sprintf("changes table %s more than once", m.table))
		}
	}
	return found
}

// checkMutationAtTop: the statement itself, or a WITH of it, not deeper.
func checkMutationAtTop(s statement) []string {
	top := map[tree.Statement]bool{s.ast: true}
	if with := withOf(s.ast); with != nil {
		for _, cte := range with.CTEList {
			top[cte.Stmt] = true
		}
	}
	var found []string
	for _, m := range mutationsOf(s.ast) {
		if !top[m.ast] {
			found = append(found, fmt.Sprintf("the change of %s is not in a WITH of the outermost statement", m.table))
		}
	}
	return found
}

func withOf(ast tree.Statement) *tree.With {
	switch n := ast.(type) {
	case *tree.Select:
		return n.With
	case *tree.Insert:
		return n.With
	case *tree.Update:
		return n.With
	case *tree.Delete:
		return n.With
	}
	return nil
}

// checkConflictTarget: the columns of exactly one unique index, written out.
// Without them CockroachDB takes all unique indexes, which had wrong answers, and
// PREPARE on PostgreSQL does not notice columns that are no index.
func checkConflictTarget(s statement) []string {
	var found []string
	for _, insert := range nodesOf[*tree.Insert](s.ast) {
		conflict := insert.OnConflict
		if conflict == nil || conflict.IsUpsertAlias() {
			continue
		}
		columns := conflict.Columns.ToStrings()
		name := tableOf(insert.Table)
		switch t := s.schema[name]; {
		case conflict.Constraint != "":
			found = append(found, "ON CONFLICT ON CONSTRAINT: name the columns")
		case len(columns) == 0:
			found = append(found, "ON CONFLICT without columns")
		case conflict.ArbiterPredicate != nil:
			found = append(found, "ON CONFLICT (...) WHERE: no partial index decides who was first")
		case t == nil:
			found = append(found, fmt.Sprintf("no file creates table %s", name))
		case !t.isUnique(columns):
			found = append(found, fmt.Sprintf("ON CONFLICT (%s) is no unique index of %s", strings.Join(columns, ", "), name))
		}
	}
	return found
}

// checkWriteByKey: an UPDATE or DELETE gives the first column of the primary key,
// so that it touches the ranges of its rows and no others. See keyed_test.go.
func checkWriteByKey(s statement) []string {
	var found []string
	for _, m := range mutationsOf(s.ast) {
		if _, ok := m.ast.(*tree.Insert); ok {
			continue
		}
		t := s.schema[m.table]
		switch {
		case t == nil:
			found = append(found, fmt.Sprintf("no file creates table %s", m.table))
		case len(t.key) == 0: // primary-key says so
		case m.where == nil:
			found = append(found, fmt.Sprintf("changes all rows of %s", m.table))
		case !givesColumn(m.where.Expr, target{m.alias, t}, t.key[0]):
			found = append(found, fmt.Sprintf("the WHERE does not set %s.%s, the first column of the primary key, equal to anything",
				m.alias, t.key[0]))
		}
	}
	return found
}

// checkMutationOrder: PostgreSQL has no UPDATE or DELETE with ORDER BY or LIMIT.
// That the rows of an INSERT are read in an order is meant: keys are locked in it.
func checkMutationOrder(s statement) []string {
	var found []string
	add := func(table tree.TableExpr, order tree.OrderBy, limit *tree.Limit) {
		if len(order) > 0 || limit != nil {
			found = append(found, fmt.Sprintf("ORDER BY or LIMIT on the change of %s", tableOf(table)))
		}
	}
	for _, m := range mutationsOf(s.ast) {
		switch n := m.ast.(type) {
		case *tree.Update:
			add(n.Table, n.OrderBy, n.Limit)
		case *tree.Delete:
			add(n.Table, n.OrderBy, n.Limit)
		}
	}
	return found
}
