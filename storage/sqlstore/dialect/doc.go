// Package dialect checks that the SQL of storage/sqlstore is SQL for CockroachDB
// too. It has tests and nothing else, so there is nothing to import.
//
// No CockroachDB server can be had where this project is built. Its parser can,
// so every *.sql file under storage/sqlstore that is not *.postgres.sql is parsed
// with it. A statement that parses may still be refused by the server, or mean
// something else there than on PostgreSQL; those cases are the rules in the
// rules_*_test.go files. What PostgreSQL says to the same files is asked of a
// real one, in the root module. None of this shows that a statement runs on
// CockroachDB: `warifu conformance` against a cluster does.
//
// # Why a module of its own
//
// The parser is github.com/cockroachdb/cockroachdb-parser. Its LICENSE file is
// the Apache License 2.0 and its README says that the package is under it. But
// most of its files begin with a header that names the CockroachDB Software
// License "included in the /LICENSE file". We read the headers as left over from
// the server's repository, which the files are copied from; the owner does not
// say so anywhere we found. Therefore:
//
//   - it is used by tests only, and all our code here is in _test.go files;
//   - it is required by this module only, so that neither the product's go.mod
//     nor a binary nor a vendor folder has it or the fifty modules it needs;
//   - this module and the root module do not import each other: the files are
//     read by their relative path;
//   - whoever objects can delete this folder and the line in the Makefile, and
//     the product is built as before.
//
// # Running it
//
//	make sql-check
//
// or here `go test -count=1 ./...`. The count matters: Go takes a test's result
// from its cache when nothing inside the module changed, and the files that are
// read here are outside of it. The first build takes minutes.
package dialect
