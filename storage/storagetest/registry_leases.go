package storagetest

import (
	"bytes"
	"errors"
	"strings"
	"time"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

// lease is a Lease call that must not fail.
func (e *registryEnv) lease(name, owner string, ttl time.Duration, want bool) registry.Lease {
	e.Helper()
	l, held, err := e.Lease(e.Context(), name, owner, ttl)
	if err != nil {
		e.Fatalf("Lease: %v", err)
	}
	if held != want {
		e.Fatalf("%s holds the lease: %v, want %v; it is %+v", owner, held, want, l)
	}
	return l
}

func (e *registryEnv) save(name string, fence claim.Fence, cursor string, want bool) {
	e.Helper()
	saved, err := e.SaveCursor(e.Context(), name, fence, []byte(cursor))
	if err != nil || saved != want {
		e.Fatalf("SaveCursor of fence %d: %v, %v; want %v", fence, saved, err, want)
	}
}

var registryLeaseCases = []registryCase{
	{"lease/one-holds-it", func(e *registryEnv) {
		mine := e.lease("sweep/1", "me", time.Minute, true)
		if mine.Name != "sweep/1" || mine.Owner != "me" || mine.Until != e.now().Add(time.Minute) || mine.Fence < claim.Fence(e.now()) {
			e.Fatalf("%+v", mine)
		}
		same(e, e.lease("sweep/1", "you", time.Minute, false), mine)
		e.lease("sweep/2", "you", time.Minute, true)
		e.clock.Advance(time.Minute - time.Microsecond)
		e.lease("sweep/1", "you", time.Minute, false)
	}},
	{"lease/is-over-at-its-end", func(e *registryEnv) {
		mine := e.lease("sweep/1", "me", time.Minute, true)
		e.clock.Advance(time.Minute)
		yours := e.lease("sweep/1", "you", time.Minute, true)
		if yours.Fence <= mine.Fence || yours.Owner != "you" {
			e.Fatalf("%+v follows %+v", yours, mine)
		}
		e.lease("sweep/1", "me", time.Minute, false)
		e.clock.Advance(2 * time.Minute)
		again := e.lease("sweep/1", "you", time.Minute, true) // lapsed, and nobody else came
		if again.Fence <= yours.Fence {
			e.Fatalf("%+v follows %+v", again, yours)
		}
	}},
	{"lease/the-holder-extends-it", func(e *registryEnv) {
		mine := e.lease("sweep/1", "me", time.Minute, true)
		e.clock.Advance(30 * time.Second)
		more := e.lease("sweep/1", "me", time.Minute, true)
		if more.Fence != mine.Fence || more.Until != e.now().Add(time.Minute) {
			e.Fatalf("%+v follows %+v", more, mine)
		}
		if late := e.lease("sweep/1", "me", time.Second, true); late.Until != more.Until {
			e.Fatalf("a late renewal has shortened it: %+v", late)
		}
	}},
	{"lease/fences-grow-also-when-the-clock-stands", func(e *registryEnv) {
		last := claim.Fence(0)
		for range 5 {
			l := e.lease("sweep/1", "me", time.Minute, true)
			if l.Fence <= last {
				e.Fatalf("fence %d follows %d", l.Fence, last)
			}
			last = l.Fence
			if err := e.Unlease(e.Context(), "sweep/1", l.Fence); err != nil {
				e.Fatalf("Unlease: %v", err)
			}
		}
	}},
	{"lease/cursors-belong-to-the-fence", func(e *registryEnv) {
		mine := e.lease("sweep/1", "me", time.Minute, true)
		e.save("sweep/1", mine.Fence, "first", true)
		e.save("sweep/1", mine.Fence+1, "no", false)
		e.save("sweep/1", mine.Fence-1, "no", false)
		e.save("sweep/2", mine.Fence, "no", false)
		e.clock.Advance(time.Hour)
		e.save("sweep/1", mine.Fence, "second", true) // nobody took over
		yours := e.lease("sweep/1", "you", time.Minute, true)
		if string(yours.Cursor) != "second" {
			e.Fatalf("cursor %q was handed over", yours.Cursor)
		}
		e.save("sweep/1", mine.Fence, "no", false)
		e.save("sweep/1", yours.Fence, "", true)
		if l := e.lease("sweep/1", "you", time.Minute, true); len(l.Cursor) != 0 {
			e.Fatalf("cursor %q, want none", l.Cursor)
		}
	}},
	{"lease/can-be-given-back", func(e *registryEnv) {
		mine := e.lease("sweep/1", "me", time.Minute, true)
		e.save("sweep/1", mine.Fence, "here", true)
		for _, wrong := range []claim.Fence{mine.Fence - 1, mine.Fence + 1, 0} {
			if err := e.Unlease(e.Context(), "sweep/1", wrong); err != nil {
				e.Fatalf("Unlease: %v", err)
			}
			e.lease("sweep/1", "you", time.Minute, false)
		}
		for range 2 {
			if err := e.Unlease(e.Context(), "sweep/1", mine.Fence); err != nil {
				e.Fatalf("Unlease: %v", err)
			}
		}
		yours := e.lease("sweep/1", "you", time.Minute, true)
		if yours.Fence <= mine.Fence || string(yours.Cursor) != "here" {
			e.Fatalf("%+v follows %+v", yours, mine)
		}
		if err := e.Unlease(e.Context(), "nobodys", 1); err != nil {
			e.Fatalf("Unlease of nothing: %v", err)
		}
	}},
	{"lease/all-are-listed-by-name", func(e *registryEnv) {
		b, a := e.lease("B", "me", time.Minute, true), e.lease("a", "me", time.Minute, true)
		if err := e.Unlease(e.Context(), "a", a.Fence); err != nil {
			e.Fatalf("Unlease: %v", err)
		}
		got, err := e.Leases(e.Context())
		if err != nil || got.Now != e.now() || len(got.Leases) != 2 {
			e.Fatalf("%+v, %v", got, err)
		}
		a.Owner, a.Until = "", e.now()
		same(e, got.Leases, []registry.Lease{b, a})
		e.Registry = e.Reopen(e.T)
		got, err = e.Leases(e.Context())
		if err != nil {
			e.Fatalf("Leases: %v", err)
		}
		same(e, got.Leases, []registry.Lease{b, a})
	}},
	{"lease/what-no-store-takes", func(e *registryEnv) {
		long := strings.Repeat("n", registry.NameCharsMax+1)
		for _, c := range []struct {
			name, owner string
			ttl         time.Duration
		}{
			{"", "me", time.Minute}, {"a", "", time.Minute}, {long, "me", time.Minute}, {"a", long, time.Minute}, {"a b", "me", time.Minute},
			{"a", "me", registry.LeaseMin - 1}, {"a", "me", registry.LeaseMax + 1}, {"a", "me", -1},
		} {
			if _, _, err := e.Lease(e.Context(), c.name, c.owner, c.ttl); !errors.Is(err, registry.ErrInvalid) {
				e.Errorf("%+v: %v", c, err)
			}
		}
		if err := e.Unlease(e.Context(), "\x00", 1); !errors.Is(err, registry.ErrInvalid) {
			e.Errorf("Unlease of no name: %v", err)
		}
		e.lease(long[1:], long[1:], registry.LeaseMax, true)
		l := e.lease("a", "me", registry.LeaseMin, true)
		if _, err := e.SaveCursor(e.Context(), "a", l.Fence, make([]byte, registry.LeaseCursorMax+1)); !errors.Is(err, registry.ErrInvalid) {
			e.Errorf("a long cursor: %v", err)
		}
		e.save("a", l.Fence, string(bytes.Repeat([]byte{0xff}, registry.LeaseCursorMax)), true)
	}},
}
