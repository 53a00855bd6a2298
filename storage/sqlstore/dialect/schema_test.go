package dialect

import (
	"slices"

	"github.com/cockroachdb/cockroachdb-parser/pkg/sql/sem/tree"
)

// schema is what the CREATE and ALTER statements of all files add up to.
type schema map[string]*table

type table struct {
	key    []string        // primary key
	unique [][]string      // other unique sets of columns, partial ones left out
	null   map[string]bool // may the column be NULL; has every column
}

// schemaOf reads the files in the order of their names, which is the order in
// which migrations run.
func schemaOf(files []*sqlFile) schema {
	s := schema{}
	for _, f := range files {
		for _, statement := range f.statements {
			s.apply(statement.ast)
		}
	}
	return s
}

func (s schema) apply(ast tree.Statement) {
	switch n := ast.(type) {
	case *tree.CreateTable:
		s[n.Table.Table()] = newTable(n)
	case *tree.DropTable:
		for _, name := range n.Names {
			delete(s, name.Table())
		}
	case *tree.CreateIndex:
		if t := s[n.Table.Table()]; t != nil && n.Unique && n.Predicate == nil {
			t.unique = append(t.unique, indexColumns(n.Columns))
		}
	case *tree.AlterTable:
		if t := s[n.Table.Object()]; t != nil {
			for _, command := range n.Cmds {
				t.alter(command)
			}
		}
	}
}

func newTable(n *tree.CreateTable) *table {
	t := &table{null: map[string]bool{}}
	for _, def := range n.Defs {
		switch def := def.(type) {
		case *tree.ColumnTableDef:
			t.addColumn(def)
		case *tree.UniqueConstraintTableDef:
			t.addUnique(def)
		}
	}
	for _, column := range t.key {
		t.null[column] = false
	}
	return t
}

func (t *table) addColumn(def *tree.ColumnTableDef) {
	name := string(def.Name)
	t.null[name] = def.Nullable.Nullability != tree.NotNull
	switch {
	case def.PrimaryKey.IsPrimaryKey:
		t.key = []string{name}
	case def.Unique.IsUnique:
		t.unique = append(t.unique, []string{name})
	}
}

func (t *table) addUnique(def *tree.UniqueConstraintTableDef) {
	switch {
	case def.PrimaryKey:
		t.key = indexColumns(def.Columns)
	case def.Predicate == nil:
		t.unique = append(t.unique, indexColumns(def.Columns))
	}
}

func (t *table) alter(command tree.AlterTableCmd) {
	switch n := command.(type) {
	case *tree.AlterTableAddColumn:
		t.addColumn(n.ColumnDef)
	case *tree.AlterTableDropColumn:
		delete(t.null, string(n.Column))
	case *tree.AlterTableSetNotNull:
		t.null[string(n.Column)] = false
	case *tree.AlterTableDropNotNull:
		t.null[string(n.Column)] = true
	case *tree.AlterTableAddConstraint:
		if unique, ok := n.ConstraintDef.(*tree.UniqueConstraintTableDef); ok {
			t.addUnique(unique)
		}
	}
}

// isUnique says whether the columns are those of one unique index, in any order.
func (t *table) isUnique(columns []string) bool {
	same := func(index []string) bool {
		return slices.Equal(slices.Sorted(slices.Values(index)), slices.Sorted(slices.Values(columns)))
	}
	return same(t.key) || slices.ContainsFunc(t.unique, same)
}

func (t *table) has(column string) bool {
	_, ok := t.null[column]
	return ok
}

func indexColumns(list tree.IndexElemList) []string {
	var columns []string
	for _, element := range list {
		columns = append(columns, string(element.Column)) // "" for an expression
	}
	return columns
}
