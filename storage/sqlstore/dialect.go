package sqlstore

import (
	"fmt"
	"strconv"
	"strings"
)

// Dialect is which database the store talks to. The SQL is the same; what
// differs is how transactions of several statements are run, and a few
// statements and settings.
type Dialect string

// The dialects, named like the suffixes of their files.
const (
	Cockroach Dialect = "cockroach"
	Postgres  Dialect = "postgres"
)

// Isolation is a transaction isolation level.
type Isolation string

// The isolation levels that the store runs under.
const (
	ReadCommitted Isolation = "read committed"
	Serializable  Isolation = "serializable"
)

// The oldest supported versions. CockroachDB before 25.1 may plan the
// uniqueness check of an insert as a full scan while a table is small.
const (
	CockroachMajorMin = 25
	CockroachMinorMin = 2
	PostgresMajorMin  = 15
)

// isolation is c's, or the dialect's default.
func (d Dialect) isolation(c Isolation) Isolation {
	switch {
	case c != "":
		return c
	case d == Cockroach:
		return Serializable
	}
	return ReadCommitted
}

// Supported reports whether a URL names a database for this package.
func Supported(url string) bool {
	_, _, err := parseURL(url)
	return err == nil
}

// parseURL returns the dialect of a URL, and the URL as drivers know it.
func parseURL(url string) (Dialect, string, error) {
	scheme, rest, ok := strings.Cut(url, "://")
	if !ok {
		return "", "", fmt.Errorf("sqlstore: the store is named by a URL that begins with cockroach:// or postgres://")
	}
	switch scheme {
	case "cockroach", "cockroachdb":
		return Cockroach, "postgres://" + rest, nil
	case "postgres", "postgresql":
		return Postgres, "postgres://" + rest, nil
	}
	return "", "", fmt.Errorf("sqlstore: scheme %q; it is cockroach or postgres", scheme)
}

// version is major and minor of a server.
type version struct{ major, minor int }

// atLeast reports whether v is not older than w. A version that could not be
// read is taken for a new one: its name changed, not its age.
func (v version) atLeast(w version) bool {
	if v == (version{}) {
		return true
	}
	return v.major > w.major || v.major == w.major && v.minor >= w.minor
}

// parseVersion finds the first number with a dot in the text of a server, such
// as "CockroachDB CCL v25.2.1 (…)" or "15.18 (Debian 15.18-1)".
func parseVersion(text string) version {
	for _, word := range strings.Fields(text) {
		parts := strings.SplitN(strings.TrimLeft(word, "v"), ".", 3)
		if len(parts) < 2 {
			continue
		}
		major, err1 := strconv.Atoi(parts[0])
		minor, err2 := strconv.Atoi(digits(parts[1]))
		if err1 == nil && err2 == nil {
			return version{major, minor}
		}
	}
	return version{}
}

// digits returns what s begins with in digits: "0devel" is 0.
func digits(s string) string {
	if i := strings.IndexFunc(s, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
		return s[:i]
	}
	return s
}
