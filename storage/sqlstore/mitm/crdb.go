package mitm

import (
	"cmp"
	"maps"
	"regexp"
	"slices"

	"github.com/jackc/pgx/v5/pgproto3"
)

// What the proxy imitates of CockroachDB when crdb_version is announced:
//
// A client there retries a transaction under SAVEPOINT cockroach_restart, and
// commits it by RELEASE SAVEPOINT cockroach_restart; its COMMIT afterwards has
// nothing left to do. PostgreSQL knows the savepoint, but commits nothing at
// its release. So the proxy follows a successful RELEASE by COMMIT, and gives
// the client the reply to RELEASE only when that succeeded. Then it begins a
// transaction with that savepoint again, in the same words, for the COMMIT or
// ROLLBACK that is to come. When COMMIT fails, its error is the reply to
// RELEASE, and the new transaction is a failed one: ROLLBACK TO SAVEPOINT
// cockroach_restart makes it a fresh attempt, as on CockroachDB.
//
// "Executed" in a Fault's meaning includes this COMMIT. The RELEASE has to be
// the last text of its trip, and a text of its own.

var releaseRestart = regexp.MustCompile(`(?is)^\s*release\s+(savepoint\s+)?"?cockroach_restart"?\s*;?\s*$`)

func (t *trip) releasesRestart() bool {
	return len(t.SQL) > 0 && releaseRestart.MatchString(t.SQL[len(t.SQL)-1])
}

// commitAtRelease commits what was released and returns the reply that the
// client gets.
func (s *session) commitAtRelease(released *reply) (*reply, error) {
	committed, err := s.query("COMMIT")
	if err != nil {
		return nil, err
	}
	for _, sql := range []string{cmp.Or(s.begin, "BEGIN"), "SAVEPOINT cockroach_restart"} {
		if err := s.command(sql); err != nil {
			return nil, err
		}
	}
	if !committed.failed {
		return released, nil
	}
	if err := s.abort(); err != nil {
		return nil, err
	}
	ready := len(committed.frames) - 1
	committed.frames[ready] = encode(&pgproto3.ReadyForQuery{TxStatus: s.status})
	committed.status = s.status
	return committed, nil
}

var systemTime = regexp.MustCompile(`(?i)\s+as\s+of\s+system\s+time\s+('[^']*'|[a-z_]+\([^)]*\))`)

// WithoutSystemTime takes AS OF SYSTEM TIME out of a text: PostgreSQL reads
// only the present.
func WithoutSystemTime(sql string) string { return systemTime.ReplaceAllString(sql, "") }

// CockroachParameters returns the runtime parameters that CockroachDB knows
// and PostgreSQL 15 refuses, as far as a client sends them at startup.
func CockroachParameters() []string {
	return []string{
		"default_transaction_quality_of_service",
		"default_transaction_use_follower_reads",
		"enable_durable_locking_for_serializable",
		"enable_implicit_transaction_for_batch_statements",
		"inject_retry_errors_enabled",
		"kv_transaction_buffered_writes_enabled",
		"results_buffer_size",
		"transaction_rows_read_err",
		"transaction_rows_written_err",
	}
}

// announcements are the messages that Config.Announce adds, in a fixed order.
func (p *Proxy) announcements() []byte {
	var out []byte
	for _, name := range slices.Sorted(maps.Keys(p.config.Announce)) {
		out = append(out, encode(&pgproto3.ParameterStatus{Name: name, Value: p.config.Announce[name]})...)
	}
	return out
}
