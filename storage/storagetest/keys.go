package storagetest

import (
	"math"
	"strings"

	"github.com/warifu/warifu/storage/claim"
)

var keyCases = []testCase{
	{"keys/odd-ones-are-all-different", func(e *env) { differentKeys(e, oddKeys()) }},
	{"keys/tenants-are-apart", func(e *env) {
		keys := []claim.Key{}
		for _, tenant := range []claim.TenantID{1, 2, 255, 256, 257, 1 << 32, math.MaxInt64} {
			keys = append(keys, claim.Key{Tenant: tenant, Consumer: "c", EventID: "e"})
		}
		differentKeys(e, keys)
	}},
}

// oddKeys are valid keys that a careless encoding, collation, pattern or
// length would take for one another.
func oddKeys() []claim.Key {
	pairs := [][2]string{
		{"a", "b/c"}, {"a/b", "c"}, {"a", "b"}, {"ab", "c"}, {"a", "bc"}, {"ab", "ab"}, {"aba", "b"},
		{"C", "e"}, {"c", "e"}, {"c", "E"}, // case
		{"c", "e "}, {"c", " e"}, {"c", "e\t"}, {"c", "e\n"}, {"c", " "}, // space
		{"c", "é"}, {"c", "e\u0301"}, // the same letter, composed and not
		{"c", "ß"}, {"c", "ss"}, {"c", "ﬀ"}, {"c", "ff"}, {"c", "İ"}, {"c", "i̇"},
		{"c", "\u0001"}, {"c", "\u0001\u0001"}, {"c", "\u00ff"}, {"c", "\uffff"}, {"c", "\U0010ffff"}, {"c", "\ufeff"},
		{"c", "'"}, {"c", "''"}, {"c", `"`}, {"c", `\`}, {"c", `\\`}, {"c", "%"}, {"c", "_"}, {"c", "$1"}, {"c", "--"},
		{"c", "{}"}, {"c", "null"}, {"c", "NULL"}, {"c", "0"}, {"c", "00"}, {"c", "1e0"}, {"c", "true"},
		{"c", strings.Repeat("x", claim.EventIDBytesMax)}, {"c", strings.Repeat("x", claim.EventIDBytesMax-1)},
		{"c", strings.Repeat("x", claim.EventIDBytesMax-1) + "y"},
		{strings.Repeat("c", claim.ConsumerCharsMax), "e"}, {strings.Repeat("c", claim.ConsumerCharsMax-1), "ce"},
		{strings.Repeat("c", claim.ConsumerCharsMax), strings.Repeat("\U0001f363", claim.EventIDBytesMax/4)},
		{".", "."}, {"..", ".."}, {"/", "/"}, {"-", "-"}, {"_", "_"},
	}
	keys := make([]claim.Key, len(pairs))
	for i, p := range pairs {
		keys[i] = claim.Key{Tenant: testTenant, Consumer: p[0], EventID: p[1]}
	}
	return keys
}

// differentKeys: each key has a record of its own, reads it back byte for
// byte, and what happens to one leaves the others alone.
func differentKeys(e *env, keys []claim.Key) {
	recs := make([]claim.Record, len(keys))
	for i, k := range keys {
		recs[i] = e.granted(requestFor(k, i+1))
	}
	for i, f := range e.get(keys...) {
		e.wantRecord(f.Record, recs[i])
	}
	for i := range recs {
		recs[i] = e.must(e.transition(complete(recs[i], result(recs[i].Key.EventID))))
	}
	for i, f := range e.get(keys...) {
		e.wantRecord(f.Record, recs[i])
	}
}
