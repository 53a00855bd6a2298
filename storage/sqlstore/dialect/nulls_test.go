package dialect

import (
	"fmt"
	"slices"

	"github.com/cockroachdb/cockroachdb-parser/pkg/sql/sem/tree"
	"github.com/cockroachdb/cockroachdb-parser/pkg/sql/sem/tree/treecmp"
)

// source is a table in a FROM.
type source struct {
	alias string
	table *table
	outer bool // a LEFT, RIGHT or FULL JOIN fills it up with NULLs
}

// checkNullsOrder: CockroachDB sorts NULLs first and PostgreSQL last. A column of
// a table that is sorted by is NOT NULL, or the WHERE leaves no NULL, or NULLS
// FIRST or LAST is written. Expressions and columns of subqueries are not judged.
func checkNullsOrder(s statement) []string {
	var found []string
	for _, n := range nodesOf[*tree.Select](s.ast) {
		clause, ok := n.Select.(*tree.SelectClause)
		if !ok {
			continue
		}
		var sources []source
		for _, e := range clause.From.Tables {
			sources = append(sources, sourcesOf(e, false, s.schema)...)
		}
		for _, order := range n.OrderBy {
			if order.OrderType != tree.OrderByColumn || order.NullsOrder != tree.DefaultNullsOrder {
				continue
			}
			name, ok := strip(order.Expr).(*tree.UnresolvedName)
			if ok && !isOutput(name, clause) && mayBeNull(name, sources) && !excludesNull(clause.Where, name) {
				found = append(found, fmt.Sprintf("ORDER BY %s, which may be NULL, without NULLS FIRST or LAST", name))
			}
		}
	}
	return found
}

func sourcesOf(e tree.TableExpr, outer bool, all schema) []source {
	switch e := e.(type) {
	case *tree.ParenTableExpr:
		return sourcesOf(e.Expr, outer, all)
	case *tree.JoinTableExpr:
		left := outer || e.JoinType == tree.AstRight || e.JoinType == tree.AstFull
		right := outer || e.JoinType == tree.AstLeft || e.JoinType == tree.AstFull
		return append(sourcesOf(e.Left, left, all), sourcesOf(e.Right, right, all)...)
	}
	if t := all[tableOf(e)]; t != nil {
		return []source{{aliasOf(e), t, outer}}
	}
	return nil
}

// isOutput says whether name is that of a column of the result and of no table.
func isOutput(name *tree.UnresolvedName, clause *tree.SelectClause) bool {
	return name.NumParts == 1 && slices.ContainsFunc(clause.Exprs, func(e tree.SelectExpr) bool {
		return string(e.As) == name.Parts[0]
	})
}

func mayBeNull(name *tree.UnresolvedName, sources []source) bool {
	return slices.ContainsFunc(sources, func(s source) bool {
		return target{s.alias, s.table}.owns(name) && s.table.has(name.Parts[0]) &&
			(s.outer || s.table.null[name.Parts[0]])
	})
}

// excludesNull says whether a condition that must hold is never true for NULL.
func excludesNull(where *tree.Where, name *tree.UnresolvedName) bool {
	if where == nil {
		return false
	}
	same := func(e tree.Expr) bool {
		other, ok := strip(e).(*tree.UnresolvedName)
		return ok && other.Parts == name.Parts
	}
	var excludes func(e tree.Expr) bool
	excludes = func(e tree.Expr) bool {
		switch e := strip(e).(type) {
		case *tree.AndExpr:
			return excludes(e.Left) || excludes(e.Right)
		case *tree.IsNotNullExpr:
			return same(e.Expr)
		case *tree.ComparisonExpr:
			switch e.Operator.Symbol {
			case treecmp.EQ, treecmp.NE, treecmp.LT, treecmp.LE, treecmp.GT, treecmp.GE:
				return same(e.Left) || same(e.Right)
			case treecmp.In, treecmp.Any:
				return same(e.Left)
			default:
			}
		}
		return false
	}
	return excludes(where.Expr)
}
