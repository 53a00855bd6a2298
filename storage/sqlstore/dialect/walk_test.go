package dialect

import (
	"reflect"
	"strings"

	"github.com/cockroachdb/cockroachdb-parser/pkg/sql/sem/tree"
)

// typeUse is what walk visits for a type that the SQL names: in a cast, in a
// column, in a list of columns.
type typeUse struct{ tree.ResolvableTypeReference }

// walk visits all nodes below node, itself included, by reflection: the parser's
// own walker sees expressions only, and a rule must not miss a clause that
// nobody thought of. Structs are visited as pointers where that is possible.
// Where visit returns false, walk does not go into the node.
func walk(node any, visit func(node any) bool) {
	walkValue(reflect.ValueOf(node), visit)
}

func walkValue(v reflect.Value, visit func(any) bool) {
	switch v.Kind() {
	case reflect.Interface:
		if v.IsNil() {
			return
		}
		if v.Type() == reflect.TypeFor[tree.ResolvableTypeReference]() {
			visit(typeUse{v.Interface().(tree.ResolvableTypeReference)})
			return
		}
		walkValue(v.Elem(), visit)
	case reflect.Pointer:
		switch {
		case v.IsNil():
		case v.Elem().Kind() == reflect.Struct:
			if visit(v.Interface()) {
				walkFields(v.Elem(), visit)
			}
		default:
			walkValue(v.Elem(), visit)
		}
	case reflect.Struct:
		node := v
		if v.CanAddr() {
			node = v.Addr()
		}
		if visit(node.Interface()) {
			walkFields(v, visit)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			walkValue(v.Index(i), visit)
		}
	default: // numbers and strings
	}
}

// walkFields stays inside the syntax tree: what hangs on it from elsewhere
// (types, the definitions of built-in functions) is not SQL that was written.
func walkFields(v reflect.Value, visit func(any) bool) {
	t := v.Type()
	if t == reflect.TypeFor[tree.ResolvableFunctionReference]() {
		return
	}
	if p := t.PkgPath(); p != "" && !strings.HasSuffix(p, "/sem/tree") {
		return
	}
	for i := range t.NumField() {
		if t.Field(i).IsExported() {
			walkValue(v.Field(i), visit)
		}
	}
}

// nodesOf returns all nodes of type T below node, in no promised order.
func nodesOf[T any](node any) []T {
	var found []T
	walk(node, func(n any) bool {
		if t, ok := n.(T); ok {
			found = append(found, t)
		}
		return true
	})
	return found
}

// mutation is an INSERT, UPDATE or DELETE, wherever it stands.
type mutation struct {
	ast   tree.Statement
	table string // without schema, and not its alias
	alias string // what columns of the table are qualified with
	using tree.TableExprs
	where *tree.Where
}

// mutationsOf returns all mutations of a statement, itself included.
func mutationsOf(root tree.Statement) []mutation {
	var found []mutation
	walk(root, func(n any) bool {
		m := mutation{}
		switch n := n.(type) {
		case *tree.Insert:
			m.ast, m.table, m.alias = n, tableOf(n.Table), aliasOf(n.Table)
		case *tree.Update:
			m = mutation{n, tableOf(n.Table), aliasOf(n.Table), n.From, n.Where}
		case *tree.Delete:
			m = mutation{n, tableOf(n.Table), aliasOf(n.Table), n.Using, n.Where}
		default:
			return true
		}
		found = append(found, m)
		return true
	})
	return found
}

// tableOf returns the name of the table behind an alias, or "".
func tableOf(e tree.TableExpr) string {
	switch e := e.(type) {
	case *tree.AliasedTableExpr:
		return tableOf(e.Expr)
	case *tree.ParenTableExpr:
		return tableOf(e.Expr)
	case *tree.TableName:
		return e.Table()
	}
	return ""
}

// aliasOf returns the name that columns of e are qualified with, or "".
func aliasOf(e tree.TableExpr) string {
	if a, ok := e.(*tree.AliasedTableExpr); ok && a.As.Alias != "" {
		return string(a.As.Alias)
	}
	return tableOf(e)
}
