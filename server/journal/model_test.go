package journal

import (
	"context"
	"errors"
	"math/rand/v2"
	"syscall"
	"testing"

	"pgregory.net/rapid"
)

// model is what a journal must hold: every entry that was acknowledged and not
// removed, in order; perhaps some that were refused; nothing else.
type model struct {
	fsys    *memFS
	journal *Journal
	rng     *rand.Rand
	next    int
	acked   []int          // acknowledged, in order
	maybe   map[int]bool   // refused: there or not
	known   map[Cursor]int // what a cursor was once read as
	removed Cursor
	last    Cursor // the largest that was read
}

// TestModel: random appends, removals, faults, crashes and restarts.
func TestModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := &model{fsys: newMemFS(), maybe: map[int]bool{}, known: map[Cursor]int{}}
		m.rng = rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		m.open(t)
		defer func() { _ = m.journal.Close() }()
		t.Repeat(map[string]func(*rapid.T){
			"":        m.check,
			"append":  m.append,
			"remove":  m.remove,
			"restart": m.restart,
			"crash":   m.crash,
			"fault":   m.fault,
		})
	})
}

func (m *model) open(t *rapid.T) {
	m.fsys.inject(nil)
	var err error
	if m.journal, err = tryOpen(m.fsys); err != nil {
		t.Fatal(err)
	}
}

func (m *model) append(t *rapid.T) {
	n := rapid.IntRange(1, 12).Draw(t, "entries")
	err := m.journal.Append(context.Background(), entries(m.next, m.next+n))
	if err != nil && !errors.Is(err, ErrFull) && !errors.Is(err, ErrBroken) {
		t.Fatal(err)
	}
	for i := m.next; i < m.next+n; i++ {
		if err == nil {
			m.acked = append(m.acked, i)
		} else {
			m.maybe[i] = true
		}
	}
	m.next += n
}

func (m *model) remove(t *rapid.T) {
	upTo := Cursor(rapid.Uint64Range(0, uint64(m.last)).Draw(t, "up to"))
	if rapid.Bool().Draw(t, "all") {
		upTo = m.last
	}
	m.removed = max(m.removed, upTo) // also when it fails half way
	err := m.journal.Remove(upTo)
	if err != nil && m.fsys.fault == nil && !errors.Is(err, ErrBroken) {
		t.Fatal(err)
	}
	if err == nil && upTo == m.last && upTo > 0 && m.journal.Stats().Entries > 0 {
		t.Fatalf("all is removed, and %d stay", m.journal.Stats().Entries)
	}
}

func (m *model) restart(t *rapid.T) {
	m.fsys.inject(nil)
	if err := m.journal.Close(); err != nil {
		t.Fatal(err)
	}
	m.open(t)
}

func (m *model) crash(t *rapid.T) {
	old := m.journal
	m.fsys = m.fsys.crash(m.rng)
	m.open(t)
	_ = old.Close() // on its own file system: nothing is lost by it
}

// fault lets some operations pass and fails one, or all, from then on.
func (m *model) fault(t *rapid.T) {
	after := rapid.IntRange(0, 8).Draw(t, "after")
	lasting := rapid.Bool().Draw(t, "lasting")
	cause := rapid.SampledFrom([]error{syscall.ENOSPC, syscall.EIO}).Draw(t, "cause")
	m.fsys.inject(func(op, _ string) error {
		if op == "read" || op == "list" {
			return nil // check reads
		}
		if after--; after == -1 || (after < 0 && lasting) {
			return cause
		}
		return nil
	})
}

// check reads everything.
func (m *model) check(t *rapid.T) {
	var got []int
	var previous Cursor
	for r, err := range m.journal.All(0) {
		if err != nil {
			t.Fatal(err)
		}
		n := number(&r.Entry)
		if previous != 0 && r.Cursor != previous+1 {
			t.Fatalf("cursor %d follows %d", r.Cursor, previous)
		}
		if was, ok := m.known[r.Cursor]; ok && was != n {
			t.Fatalf("cursor %d was entry %d and is entry %d", r.Cursor, was, n)
		}
		previous, m.known[r.Cursor] = r.Cursor, n
		got = append(got, n)
	}
	m.last = max(m.last, previous)
	for c, n := range m.known { // durable once is durable for good
		if c > m.removed && (len(got) == 0 || c > previous) {
			t.Fatalf("entry %d at %d is gone", n, c)
		}
	}
	// What was acknowledged and not removed is there, in order; besides it only
	// what was refused.
	gone := map[int]bool{}
	for c, n := range m.known {
		gone[n] = c <= m.removed
	}
	i := 0
	for _, n := range m.acked {
		for i < len(got) && m.maybe[got[i]] {
			i++
		}
		if i < len(got) && got[i] == n {
			i++
		} else if !gone[n] {
			t.Fatalf("acknowledged entry %d is gone; held are %v", n, got)
		}
	}
	for ; i < len(got); i++ {
		if !m.maybe[got[i]] {
			t.Fatalf("entry %d is there and nobody appended it so", got[i])
		}
	}
	if s := m.journal.Stats(); s.Entries != uint64(len(got)) {
		t.Fatalf("stats say %d entries, read were %d", s.Entries, len(got))
	}
}
