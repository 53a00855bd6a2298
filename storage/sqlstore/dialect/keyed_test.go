package dialect

import (
	"github.com/cockroachdb/cockroachdb-parser/pkg/sql/sem/tree"
	"github.com/cockroachdb/cockroachdb-parser/pkg/sql/sem/tree/treecmp"
)

// target is the table that a statement changes, under its name in the statement.
type target struct {
	alias string
	table *table
}

// givesColumn says whether a condition that must hold sets the column equal to
// something that is not from the changed row itself: `c.shard = $1`, `c.shard =
// i.shard` of another table, `shard = ANY (...)`, `(shard, ...) IN (...)`. What
// stands under OR or NOT need not hold; a range has no end that we know.
func givesColumn(where tree.Expr, t target, column string) bool {
	switch e := where.(type) {
	case *tree.ParenExpr:
		return givesColumn(e.Expr, t, column)
	case *tree.AndExpr:
		return givesColumn(e.Left, t, column) || givesColumn(e.Right, t, column)
	case *tree.ComparisonExpr:
		return equates(e, t, column)
	}
	return false
}

func equates(e *tree.ComparisonExpr, t target, column string) bool {
	switch e.Operator.Symbol {
	case treecmp.EQ:
		return pairs(e.Left, e.Right, t, column) || pairs(e.Right, e.Left, t, column)
	case treecmp.In:
		return mentions(e.Left, t, column) && !t.reads(e.Right)
	case treecmp.Any:
		return e.SubOperator.Symbol == treecmp.EQ && mentions(e.Left, t, column) && !t.reads(e.Right)
	default:
		return false
	}
}

// pairs says whether left = right sets the column: as a whole, or in its place in
// two rows `(shard, id) = ($1, $2)`.
func pairs(left, right tree.Expr, t target, column string) bool {
	left, right = strip(left), strip(right)
	a, isRow := left.(*tree.Tuple)
	if !isRow {
		return t.is(left, column) && !t.reads(right)
	}
	b, ok := right.(*tree.Tuple)
	if !ok {
		return mentions(left, t, column) && !t.reads(right)
	}
	for i := range min(len(a.Exprs), len(b.Exprs)) {
		if pairs(a.Exprs[i], b.Exprs[i], t, column) {
			return true
		}
	}
	return false
}

// mentions says whether e is the column, or a row with the column in it.
func mentions(e tree.Expr, t target, column string) bool {
	e = strip(e)
	if row, ok := e.(*tree.Tuple); ok {
		for _, part := range row.Exprs {
			if t.is(part, column) {
				return true
			}
		}
		return false
	}
	return t.is(e, column)
}

func strip(e tree.Expr) tree.Expr {
	for {
		inner, ok := e.(*tree.ParenExpr)
		if !ok {
			return e
		}
		e = inner.Expr
	}
}

// is says whether e is that column of the target. A name without a table is the
// target's when it has such a column: if another table has one too, the servers
// refuse the statement.
func (t target) is(e tree.Expr, column string) bool {
	name, ok := strip(e).(*tree.UnresolvedName)
	return ok && !name.Star && name.Parts[0] == column && t.owns(name)
}

func (t target) owns(name *tree.UnresolvedName) bool {
	if name.NumParts == 1 {
		return t.table.has(name.Parts[0])
	}
	return name.Parts[1] == t.alias
}

// reads says whether e depends on a column of the target: `c.shard = c.shard`
// holds for every row. In a subquery with tables of its own, names without a
// table are theirs, and so is everything when one of them has the target's name.
func (t target) reads(e tree.Expr) bool { return t.readsIn(e, false) }

func (t target) readsIn(node any, inner bool) bool {
	found := false
	walk(node, func(n any) bool {
		switch n := n.(type) {
		case *tree.SelectClause:
			if n == node || len(n.From.Tables) == 0 {
				return !found
			}
			if !t.hiddenBy(n.From.Tables) {
				found = found || t.readsIn(n, true)
			}
			return false
		case *tree.UnresolvedName:
			if t.owns(n) && (n.NumParts > 1 || !inner) {
				found = true
			}
		}
		return !found
	})
	return found
}

func (t target) hiddenBy(tables tree.TableExprs) bool {
	for _, table := range tables {
		switch e := table.(type) {
		case *tree.JoinTableExpr:
			if t.hiddenBy(tree.TableExprs{e.Left, e.Right}) {
				return true
			}
		case *tree.ParenTableExpr:
			if t.hiddenBy(tree.TableExprs{e.Expr}) {
				return true
			}
		default:
			if aliasOf(table) == t.alias {
				return true
			}
		}
	}
	return false
}
