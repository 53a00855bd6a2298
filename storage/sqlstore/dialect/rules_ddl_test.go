package dialect

import (
	"fmt"
	"slices"

	"github.com/cockroachdb/cockroachdb-parser/pkg/sql/parser"
	"github.com/cockroachdb/cockroachdb-parser/pkg/sql/sem/tree"
)

// checkGuardedDDL: schema changes are not transactions on CockroachDB, so a
// migration that was cut off runs again from the statement that may have run.
func checkGuardedDDL(s statement) []string {
	guarded := true
	switch n := s.ast.(type) {
	case *tree.CreateTable:
		guarded = n.IfNotExists
	case *tree.CreateIndex:
		guarded = n.IfNotExists
	case *tree.DropTable:
		guarded = n.IfExists
	case *tree.DropIndex:
		guarded = n.IfExists
	case *tree.AlterTable:
		var found []string
		for _, command := range n.Cmds {
			if text := checkAlter(command, s.portable()); text != "" {
				found = append(found, text)
			}
		}
		return found
	}
	if !guarded {
		return []string{s.ast.StatementTag() + " without IF NOT EXISTS or IF EXISTS"}
	}
	return nil
}

// checkAlter returns what is wrong with one part of an ALTER TABLE, or "". The
// last commands need no guard: run twice, they do the same.
func checkAlter(command tree.AlterTableCmd, portable bool) string {
	var guarded bool
	switch n := command.(type) {
	case *tree.AlterTableAddColumn:
		guarded = n.IfNotExists
	case *tree.AlterTableDropColumn:
		guarded = n.IfExists
	case *tree.AlterTableDropConstraint:
		guarded = n.IfExists
	case *tree.AlterTableAddConstraint:
		if portable {
			return "ADD CONSTRAINT: PostgreSQL has no IF NOT EXISTS for it, so make two files"
		}
		guarded = constraintGuarded(n.ConstraintDef)
	case *tree.AlterTableSetDefault, *tree.AlterTableSetNotNull, *tree.AlterTableDropNotNull:
		guarded = true
	default:
		return fmt.Sprintf("ALTER TABLE %s cannot be run twice on both", command.TelemetryName())
	}
	if !guarded {
		return fmt.Sprintf("ALTER TABLE %s without IF NOT EXISTS or IF EXISTS", command.TelemetryName())
	}
	return ""
}

func constraintGuarded(def tree.ConstraintTableDef) bool {
	switch def := def.(type) {
	case *tree.UniqueConstraintTableDef:
		return def.IfNotExists
	case *tree.CheckConstraintTableDef:
		return def.IfNotExists
	case *tree.ForeignKeyConstraintTableDef:
		return def.IfNotExists
	}
	return false
}

// checkPrimaryKey: CockroachDB adds a hidden one, and write-by-key needs it.
func checkPrimaryKey(s statement) []string {
	n, ok := s.ast.(*tree.CreateTable)
	if !ok || n.As() {
		return nil
	}
	if t := newTable(n); len(t.key) == 0 || slices.Contains(t.key, "") {
		return []string{fmt.Sprintf("table %s has no primary key of columns", n.Table.Table())}
	}
	return nil
}

// checkGeneratedKeys: the database numbers rows differently on each side, and
// rising numbers make one range hot.
func checkGeneratedKeys(s statement) []string {
	var found []string
	for _, column := range nodesOf[*tree.ColumnTableDef](s.ast) {
		if column.IsSerial || column.GeneratedIdentity.IsGeneratedAsIdentity {
			found = append(found, fmt.Sprintf("column %s is SERIAL or IDENTITY", column.Name))
		}
	}
	return found
}

// What follows is SQL that only CockroachDB has: in *.cockroach.sql, if at all.

func checkUpsert(s statement) []string {
	for _, insert := range nodesOf[*tree.Insert](s.ast) {
		if s.portable() && insert.OnConflict.IsUpsertAlias() {
			return []string{"UPSERT outside of *.cockroach.sql"}
		}
	}
	return nil
}

// checkAsOf: the time is written out, also there: a parameter is refused.
func checkAsOf(s statement) []string {
	for _, clause := range nodesOf[*tree.AsOfClause](s.ast) {
		switch {
		case clause.Expr == nil:
		case s.portable():
			return []string{"AS OF SYSTEM TIME outside of *.cockroach.sql"}
		case len(nodesOf[*tree.Placeholder](clause.Expr)) > 0:
			return []string{"AS OF SYSTEM TIME takes no parameter"}
		}
	}
	return nil
}

func checkFamily(s statement) []string {
	if !s.portable() {
		return nil
	}
	if len(nodesOf[*tree.FamilyTableDef](s.ast)) > 0 {
		return []string{"FAMILY outside of *.cockroach.sql"}
	}
	for _, column := range nodesOf[*tree.ColumnTableDef](s.ast) {
		if column.HasColumnFamily() {
			return []string{"FAMILY outside of *.cockroach.sql"}
		}
	}
	return nil
}

// checkStoring: the tree has no other word for INCLUDE, which both have, so the
// word itself is looked for. It may be the name of a column, too.
func checkStoring(s statement) []string {
	stores := false
	walk(s.ast, func(n any) bool {
		switch n := n.(type) {
		case *tree.CreateIndex:
			stores = stores || len(n.Storing) > 0
		case *tree.IndexTableDef:
			stores = stores || len(n.Storing) > 0
		}
		return true
	})
	words := func(t parser.TokenString) bool { return t.TokenID == parser.STORING || t.TokenID == parser.COVERING }
	if stores && s.portable() && slices.ContainsFunc(s.tokens, words) {
		return []string{"STORING outside of *.cockroach.sql: INCLUDE is for both"}
	}
	return nil
}

func checkUsingHash(s statement) []string {
	sharded := len(nodesOf[*tree.ShardedIndexDef](s.ast)) > 0
	for _, column := range nodesOf[*tree.ColumnTableDef](s.ast) {
		sharded = sharded || column.PrimaryKey.Sharded
	}
	if sharded && s.portable() {
		return []string{"USING HASH outside of *.cockroach.sql"}
	}
	return nil
}
