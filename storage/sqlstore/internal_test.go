package sqlstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

func TestParseURL(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		url  string
		want Dialect
		as   string
	}{
		{"cockroach://root@db:26257/warifu?sslmode=verify-full", Cockroach, "postgres://root@db:26257/warifu?sslmode=verify-full"},
		{"cockroachdb://db/warifu", Cockroach, "postgres://db/warifu"},
		{"postgres://u:p@a,b:5433/w", Postgres, "postgres://u:p@a,b:5433/w"},
		{"postgresql://db/w", Postgres, "postgres://db/w"},
		{"mysql://db/w", "", ""},
		{"host=db dbname=w", "", ""},
		{"", "", ""},
	} {
		d, as, err := parseURL(c.url)
		if d != c.want || as != c.as || (err == nil) != (c.want != "") {
			t.Errorf("%q: %q, %q, %v", c.url, d, as, err)
		}
	}
}

func TestParseVersion(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]version{
		"15.18 (Debian 15.18-0+deb12u1)": {15, 18},
		"17.0":                           {17, 0},
		"CockroachDB CCL v25.2.3 (x86_64-pc-linux-gnu, built 2025)":   {25, 2},
		"CockroachDB OSS v26.1.0-alpha.1 (aarch64-unknown-linux-gnu)": {26, 1},
		"16beta1":     {},
		"18.0devel":   {18, 0},
		"":            {},
		"CockroachDB": {},
	} {
		if got := parseVersion(text); got != want {
			t.Errorf("%q is %v, want %v", text, got, want)
		}
	}
	oldest := version{25, 2}
	for v, want := range map[version]bool{{25, 1}: false, {25, 2}: true, {24, 9}: false, {26, 0}: true, {}: true} {
		if v.atLeast(oldest) != want {
			t.Errorf("%v is at least %v: %t", v, oldest, !want)
		}
	}
}

// TestClassify holds every code of the table to what is done about it, and to
// whether anything may have been applied.
func TestClassify(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		err  error
		want class
		sent bool
	}{
		{"no connection in time", notSentError{context.DeadlineExceeded}, busy, false},
		{"connection refused", notSentError{&pgconn.ConnectError{}}, broken, false},
		{"too many connections, at the start of one", notSentError{&pgconn.PgError{Code: "53300"}}, overloaded, false},
		{"wrong password", notSentError{&pgconn.PgError{Code: "28P01"}}, fails, false},
		{"wrong database", notSentError{fmt.Errorf("connect: %w", ErrMismatch)}, fails, false},
		{"retry", &pgconn.PgError{Code: "40001"}, undone, true},
		{"ambiguous", &pgconn.PgError{Code: "40003"}, conflict, true},
		{"deadlock", &pgconn.PgError{Code: "40P01"}, undone, true},
		{"drain", &pgconn.PgError{Code: "57P01"}, broken, true},
		{"cancelled", &pgconn.PgError{Code: "57014"}, broken, true},
		{"standby", &pgconn.PgError{Code: "25006"}, broken, true},
		{"range unavailable", &pgconn.PgError{Code: "58C00"}, overloaded, true},
		{"schema changed", &pgconn.PgError{Code: "0A000", Message: "cached plan must not change result type"}, replan, true},
		{"not supported", &pgconn.PgError{Code: "0A000", Message: "multiple mutations of the same table"}, fails, true},
		{"syntax", &pgconn.PgError{Code: "42601"}, fails, true},
		{"batch with a key twice", &pgconn.PgError{Code: "21000"}, fails, true},
		{"corrupted", &pgconn.PgError{Code: "XX001"}, damaged, true},
		{"cut off", io.ErrUnexpectedEOF, broken, true},
		{"timed out", context.DeadlineExceeded, broken, true},
		{"row", fmt.Errorf("read: %w", errRow), fails, true},
	} {
		if got, sent := classify(c.err); got != c.want || sent != c.sent {
			t.Errorf("%s: class %d, sent %t; want %d, %t", c.name, got, sent, c.want, c.sent)
		}
	}
}

// TestOutcome: what a call says of itself when it is given up. Nobody above
// sees a code of the database, or takes its deadline for the caller's.
func TestOutcome(t *testing.T) {
	t.Parallel()
	cut, bug := io.ErrUnexpectedEOF, &pgconn.PgError{Code: "42601"}
	for _, c := range []struct {
		name string
		err  error
		want error
	}{
		{"a write that was sent", outcome(writes, broken, true, cut), storage.ErrUnknown},
		{"a wrong write that was sent", outcome(writes, fails, true, bug), storage.ErrUnknown},
		{"a write that was not sent", outcome(writes, overloaded, false, notSentError{context.DeadlineExceeded}), storage.ErrUnavailable},
		{"a read that was sent", outcome(reads, broken, true, context.DeadlineExceeded), storage.ErrUnavailable},
		{"a damaged read", outcome(reads, damaged, true, cut), storage.ErrDamaged},
		{"an unreadable row", outcome(reads, fails, true, errRow), storage.ErrDamaged},
		{"a wrong password", outcome(writes, fails, false, notSentError{bug}), storage.ErrUnavailable},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s says %v, want %v", c.name, c.err, c.want)
		}
		var pg *pgconn.PgError
		if errors.As(c.err, &pg) || errors.Is(c.err, context.DeadlineExceeded) || errors.Is(c.err, io.ErrUnexpectedEOF) {
			t.Errorf("%s shows its cause: %v", c.name, c.err)
		}
	}
	wrong := outcome(reads, fails, true, bug)
	for _, sentinel := range []error{storage.ErrUnknown, storage.ErrUnavailable, storage.ErrDamaged} {
		if errors.Is(wrong, sentinel) {
			t.Errorf("a wrong read says %v", wrong)
		}
	}
}

// TestShardOf holds the shards still: they are part of every primary key.
func TestShardOf(t *testing.T) {
	t.Parallel()
	var got []int16
	for _, k := range []claim.Key{
		{Tenant: 1, Consumer: "c", EventID: "a"}, {Tenant: 2, Consumer: "c", EventID: "a"},
		{Tenant: 1, Consumer: "ca", EventID: ""}, {Tenant: 1 << 40, Consumer: "billing/webhook", EventID: "evt_1NG8Du2eZvKYlo2CUI79vXWy"},
		{},
	} {
		got = append(got, shardOf(&k))
	}
	if want := []int16{1, 6, 0, 3, 8}; !slices.Equal(got, want) {
		t.Errorf("shards %v, want %v", got, want)
	}
}

// TestShardsAreEven: keys that grow are spread, whatever part of them grows.
func TestShardsAreEven(t *testing.T) {
	t.Parallel()
	for name, event := range map[string]func(i int) string{
		"numbers":    func(i int) string { return fmt.Sprint(i) },
		"padded":     func(i int) string { return fmt.Sprintf("%020d", i) },
		"in front":   func(i int) string { return fmt.Sprintf("%08x-0000", i) },
		"last bytes": func(i int) string { return "evt_" + string(binary.BigEndian.AppendUint32(nil, uint32(i))) },
	} {
		const n = 16_000
		var count [shards]int
		for i := range n {
			count[shardOf(&claim.Key{Tenant: 3, Consumer: "c", EventID: event(i)})]++
		}
		for shard, c := range count {
			if c < n/shards*8/10 || c > n/shards*12/10 {
				t.Errorf("%s: shard %d has %d of %d keys", name, shard, c, n)
			}
		}
	}
}

func TestSorted(t *testing.T) {
	t.Parallel()
	ids := []claim.Key{{Tenant: 2, Consumer: "b", EventID: "x"}, {Tenant: 1, Consumer: "b", EventID: "y"}, {Tenant: 1, Consumer: "a", EventID: "z"}, {Tenant: 1, Consumer: "a", EventID: "a"}}
	k := sorted(len(ids), func(i int) *claim.Key { return &ids[i] })
	for p := range ids {
		i, err := k.item(k.n[p])
		if err != nil || k.event[p] != ids[i].EventID || k.shard[p] != shardOf(&ids[i]) || k.tenant[p] != int64(ids[i].Tenant) {
			t.Errorf("place %d is item %d, %v", p, i, err)
		}
		if p > 0 && k.shard[p] < k.shard[p-1] {
			t.Errorf("shards are not in order: %v", k.shard)
		}
	}
	for _, n := range []int16{-1, 4} {
		if _, err := k.item(n); err == nil {
			t.Errorf("place %d is an item", n)
		}
	}
	if some := k.only([]int{3, 1}); !slices.Equal(some.n, []int16{3, 1}) || some.event[0] != k.event[3] {
		t.Errorf("only: %+v", some)
	}
}

// TestCursor: what was changed, cut off or made for something else is refused.
func TestCursor(t *testing.T) {
	t.Parallel()
	p := position{expiry: 1 << 50, key: claim.Key{Tenant: 1 << 40, Consumer: "c", EventID: strings.Repeat("é", 200)}}
	b := p.encode(listCursor)
	if got, err := decodePosition(listCursor, b); err != nil || got != p {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := decodePosition(sweepCursor, b); !errors.Is(err, storage.ErrCursor) {
		t.Errorf("a list's cursor is a sweep's: %v", err)
	}
	for i := range b {
		bad := slices.Clone(b)
		bad[i] ^= 1
		if _, err := decodePosition(listCursor, bad); !errors.Is(err, storage.ErrCursor) {
			t.Errorf("with byte %d changed: %v", i, err)
		}
		if i == 0 {
			continue // no bytes are the beginning
		}
		if _, err := decodePosition(listCursor, b[:i]); !errors.Is(err, storage.ErrCursor) {
			t.Errorf("cut off at %d: %v", i, err)
		}
	}
}

func TestValid(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"": "", "abc": "abc", "aé": "aé", "a\xc3": "a", "\xf0\x9f\x8d": "", "é\xf0\x9f": "é"} {
		if got := valid(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// TestRow: a row that is not as expected is refused, and none panics.
func TestRow(t *testing.T) {
	t.Parallel()
	eight := make([]byte, 8)
	for name, read := range map[string]func(*row){
		"too few columns":   func(r *row) { r.int8(); r.int8() },
		"too many":          func(*row) {},
		"another length":    func(r *row) { r.int2() },
		"an instant of two": func(r *row) { *r = row{values: [][]byte{{1, 2}}}; r.time() },
		"months":            func(r *row) { *r = row{values: [][]byte{append(make([]byte, 15), 1)}}; r.interval() },
		"unknown sum": func(r *row) {
			*r = completed([]byte("short"))
			r.completion(&claim.Record{State: claim.Completed}, true)
		},
		"no sum":              func(r *row) { *r = completed(nil); r.completion(&claim.Record{State: claim.Completed}, true) },
		"digests of nonsense": func(r *row) { *r = row{values: [][]byte{{9, 9}}}; r.digests() },
	} {
		r := row{values: [][]byte{eight}}
		read(&r)
		if err := r.end(); !errors.Is(err, errRow) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r := row{values: [][]byte{binary.BigEndian.AppendUint64(nil, 1_000_000), nil, slices.Concat(binary.BigEndian.AppendUint64(nil, 5), []byte{0, 0, 0, 2, 0, 0, 0, 0})}}
	if at, none, d := r.time(), r.time(), r.interval(); at != epoch2000+1_000_000 || none != 0 || d != 48*time.Hour+5*time.Microsecond || r.end() != nil {
		t.Errorf("%v, %v, %v, %v", at, none, d, r.end())
	}
}

func completed(sum []byte) row {
	two := []byte{0, 1}
	return row{values: [][]byte{two, two, nil, nil, sum, nil, make([]byte, 8)}}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	_, err := Config{Isolation: "snapshot", Conns: -1, CallTimeout: -1}.withDefaults()
	for _, want := range []string{"URL", "snapshot", "Conns", "CallTimeout"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
	if _, err := Open(context.Background(), Config{URL: "postgres://x/y?default_query_exec_mode=simple_protocol"}); !errors.Is(err, ErrMismatch) {
		t.Errorf("the simple protocol: %v", err)
	}
}
