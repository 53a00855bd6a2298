package dialect

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cockroachdb/cockroachdb-parser/pkg/sql/parser"
	"github.com/cockroachdb/cockroachdb-parser/pkg/sql/sem/tree"
	"github.com/cockroachdb/cockroachdb-parser/pkg/sql/sem/tree/treebin"
	"github.com/cockroachdb/cockroachdb-parser/pkg/sql/types"
)

// allowedFunctions are those that mean the same on both, by the name the parser
// gives them (current_timestamp is one of its own, AT TIME ZONE is timezone).
var allowedFunctions = map[string]string{
	"now":             "fixed for the transaction, one clock: the only time that decides",
	"length":          "characters of TEXT and bytes of BYTEA, on both",
	"octet_length":    "bytes of both",
	"greatest":        "ignores NULL on both; fences",
	"least":           "ignores NULL on both",
	"coalesce":        "standard",
	"nullif":          "standard",
	"unnest":          "how a batch is passed; arrays of one length, which Go checks",
	"count":           "INT8 on both",
	"min":             "standard",
	"max":             "standard",
	"sum":             "of INT8 a DECIMAL on both: cast it",
	"extract":         "DOUBLE PRECISION on one, NUMERIC on the other: cast it",
	"current_setting": "for the checks at the start",
}

// checkFunctions: so no clock_timestamp (another value in each row and node),
// no advisory locks (CockroachDB has some that do nothing), no crdb_internal.
func checkFunctions(s statement) []string {
	var found []string
	walk(s.ast, func(n any) bool {
		var name string
		switch n := n.(type) {
		case *tree.FuncExpr:
			name = strings.ToLower(n.Func.String())
		case *tree.CoalesceExpr:
			name = strings.ToLower(n.Name) // also IFNULL
		case *tree.NullIfExpr:
			name = "nullif"
		case *tree.IfExpr:
			name = "if"
		case *tree.IfErrExpr:
			name = "iferror"
		default:
			return true
		}
		if allowedFunctions[name] == "" {
			found = append(found, fmt.Sprintf("%s() is not in allowedFunctions", name))
		}
		return true
	})
	return found
}

// checkNoStar: a prepared statement with * breaks when a column is added.
// count(*) names no columns.
func checkNoStar(s statement) []string {
	var found []string
	star := func() { found = append(found, "* instead of columns") }
	var look func(n any) bool
	look = func(n any) bool {
		switch n := n.(type) {
		case *tree.FuncExpr:
			if isCountStar(n) {
				walk(n.Filter, look)
				return false
			}
		case tree.UnqualifiedStar, *tree.UnqualifiedStar, *tree.AllColumnsSelector, *tree.TupleStar:
			star()
		case *tree.UnresolvedName:
			if n.Star {
				star()
			}
		}
		return true
	}
	walk(s.ast, look)
	return found
}

func isCountStar(f *tree.FuncExpr) bool {
	if strings.ToLower(f.Func.String()) != "count" || len(f.Exprs) != 1 {
		return false
	}
	_, ok := f.Exprs[0].(tree.UnqualifiedStar)
	return ok
}

// checkNoLocking: FOR UPDATE is best effort under SERIALIZABLE on CockroachDB,
// and SKIP LOCKED skips rows that are not locked. Writes compare and set.
func checkNoLocking(s statement) []string {
	for _, n := range nodesOf[*tree.LockingItem](s.ast) {
		return []string{strings.TrimSpace(tree.AsString(n)) + ": write with a condition instead"}
	}
	return nil
}

// checkFirstCast: PostgreSQL takes the type of $n from its first use in the text.
func checkFirstCast(s statement) []string {
	var found, seen []string
	for i, token := range s.tokens {
		if token.TokenID != parser.PLACEHOLDER || slices.Contains(seen, token.Str) {
			continue
		}
		seen = append(seen, token.Str)
		if i+1 >= len(s.tokens) || s.tokens[i+1].TokenID != parser.TYPECAST {
			found = append(found, fmt.Sprintf("the first use of $%s is not $%s::TYPE", token.Str, token.Str))
		}
	}
	return found
}

// checkCastsAgree: CockroachDB takes the type of $n from its casts only when all
// its uses have one and they are the same. Otherwise the type comes from what is
// around the use that it looks at first, which need not be the first in the text.
func checkCastsAgree(s statement) []string {
	var found []string
	casts := map[tree.PlaceholderIdx]string{}
	use := func(p *tree.Placeholder, cast string) {
		if first, ok := casts[p.Idx]; ok && first != cast {
			found = append(found, fmt.Sprintf("%s has the casts %q and %q: give all its uses the same", p, first, cast))
		}
		casts[p.Idx] = cast
	}
	walk(s.ast, func(n any) bool {
		switch n := n.(type) {
		case *tree.CastExpr:
			if p, ok := n.Expr.(*tree.Placeholder); ok {
				use(p, n.Type.SQLString())
				return false
			}
		case *tree.Placeholder:
			use(n, "")
		}
		return true
	})
	return found
}

// allowedTypes are those of one size and one meaning on both, as the parser calls
// them: BYTES is BYTEA, STRING is TEXT. INT is not here: 4 bytes or 8.
var allowedTypes = []string{"INT2", "INT8", "BYTES", "STRING", "UUID", "BOOL", "TIMESTAMPTZ", "INTERVAL"}

func checkTypes(s statement) []string {
	var found []string
	for _, use := range nodesOf[typeUse](s.ast) {
		name := use.SQLString()
		known, ok := tree.GetStaticallyKnownType(use.ResolvableTypeReference)
		if ok && isCollated(known) {
			continue // checkCollate says so
		}
		if !ok || !slices.Contains(allowedTypes, strings.TrimSuffix(name, "[]")) {
			found = append(found, fmt.Sprintf("type %s is not in allowedTypes", name))
		}
	}
	return found
}

// systemColumns: those of PostgreSQL are missing in CockroachDB or mean nothing
// there, and the parser takes all for columns of ours.
var systemColumns = []string{
	"xmin", "xmax", "cmin", "cmax", "ctid", "oid", "tableoid",
	"crdb_internal_mvcc_timestamp", "crdb_internal_origin_id", "crdb_internal_origin_timestamp",
}

func checkSystemColumns(s statement) []string {
	var found []string
	walk(s.ast, func(n any) bool {
		switch n := n.(type) {
		case *tree.UnresolvedName:
			if slices.Contains(systemColumns, n.Parts[0]) {
				found = append(found, fmt.Sprintf("%s is a system column", n))
			}
		case *tree.TableName:
			if n.Schema() == "crdb_internal" {
				found = append(found, fmt.Sprintf("%s is closed to clients", n))
			}
		}
		return true
	})
	return found
}

// checkCollate: CockroachDB compares TEXT by its bytes and knows no "C"; it keeps
// text of another collation as another type. A column's COLLATE is PostgreSQL's.
func checkCollate(s statement) []string {
	var found []string
	walk(s.ast, func(n any) bool {
		switch n := n.(type) {
		case *tree.CollateExpr:
			found = append(found, "COLLATE in an expression")
		case *tree.AlterTableAlterColumnType:
			if n.Collation != "" {
				found = append(found, "COLLATE of a column")
			}
		case typeUse:
			if known, ok := tree.GetStaticallyKnownType(n.ResolvableTypeReference); ok && isCollated(known) {
				found = append(found, "COLLATE of a column")
			}
		}
		return true
	})
	return found
}

func isCollated(t *types.T) bool {
	if t.Family() == types.ArrayFamily {
		t = t.ArrayContents()
	}
	return t.Family() == types.CollatedStringFamily
}

// checkDivision: of integers it is an integer on PostgreSQL and a decimal on
// CockroachDB. Divide in Go.
func checkDivision(s statement) []string {
	for _, n := range nodesOf[*tree.BinaryExpr](s.ast) {
		if n.Operator.Symbol == treebin.Div || n.Operator.Symbol == treebin.FloorDiv {
			return []string{fmt.Sprintf("divides: %s", n)}
		}
	}
	return nil
}
