package storagetest

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// Backend is a store that takes part in random histories.
type Backend struct {
	Open Opener
	// Reopen ends a store that Open returned, as a restart of its process
	// does, and opens it again. Nil: the store is never restarted.
	Reopen func(t T, store storage.Store, clock *Clock, grace time.Duration) storage.Store
	// FencesFloat: the store may grant larger fences than the model, because it
	// knows a floor. Their order is compared instead of their numbers.
	FencesFloat bool
	// ForwardOnly: the store cannot be shown a clock that goes back; then no
	// history of the run does. Say why where you set it.
	ForwardOnly bool
}

// chorus is a store that asks the model and every backend the same, demands
// the same answers, and gives the model's.
type chorus struct {
	t     T
	clock *Clock
	grace time.Duration
	*Model
	voices []*voice
}

type voice struct {
	name string
	Backend
	store storage.Store
	// fences maps the model's fences to the store's, where they float.
	fences map[claim.Key]map[claim.Fence]claim.Fence
}

func newChorus(t T, backends map[string]Backend, clock *Clock, grace time.Duration) *chorus {
	c := &chorus{t: t, clock: clock, grace: grace, Model: NewModel(clock.Now, grace)}
	for _, name := range slices.Sorted(maps.Keys(backends)) {
		b := backends[name]
		c.voices = append(c.voices, &voice{
			name: name, Backend: b, store: b.Open(t, clock, grace), fences: map[claim.Key]map[claim.Fence]claim.Fence{},
		})
	}
	return c
}

func (c *chorus) reopen() {
	c.Model = c.Model.Reopen()
	for _, v := range c.voices {
		if v.Reopen != nil {
			v.store = v.Reopen(c.t, v.store, c.clock, c.grace)
		}
	}
}

// InsertOrGet implements storage.Store.
func (c *chorus) InsertOrGet(ctx context.Context, reqs []claim.Request) ([]storage.Found, error) {
	want, err := c.Model.InsertOrGet(ctx, reqs)
	for _, v := range c.voices {
		got, gotErr := v.store.InsertOrGet(ctx, reqs)
		c.same(v, "InsertOrGet", want, err, got, gotErr)
	}
	return want, err
}

// Get implements storage.Store.
func (c *chorus) Get(ctx context.Context, keys []claim.Key) ([]storage.Found, error) {
	want, err := c.Model.Get(ctx, keys)
	for _, v := range c.voices {
		got, gotErr := v.store.Get(ctx, keys)
		c.same(v, "Get", want, err, got, gotErr)
	}
	return want, err
}

// Transition implements storage.Store.
func (c *chorus) Transition(ctx context.Context, ts []claim.Transition) ([]storage.Found, error) {
	want, err := c.Model.Transition(ctx, ts)
	for _, v := range c.voices {
		mine := slices.Clone(ts)
		for i := range mine {
			mine[i].Fence = v.fence(mine[i].Key, mine[i].Fence)
		}
		got, gotErr := v.store.Transition(ctx, mine)
		c.same(v, "Transition", want, err, got, gotErr)
	}
	return want, err
}

// Replace implements storage.Store.
func (c *chorus) Replace(ctx context.Context, swaps []claim.Swap) ([]storage.Found, error) {
	want, err := c.Model.Replace(ctx, swaps)
	for _, v := range c.voices {
		mine := slices.Clone(swaps)
		for i := range mine {
			mine[i].Fence = v.fence(mine[i].Key, mine[i].Fence)
		}
		got, gotErr := v.store.Replace(ctx, mine)
		c.same(v, "Replace", want, err, got, gotErr)
	}
	return want, err
}

// same demands that a store answered as the model did.
func (c *chorus) same(v *voice, method string, want []storage.Found, wantErr error, got []storage.Found, gotErr error) {
	c.t.Helper()
	if wantErr != nil || gotErr != nil || len(want) != len(got) {
		c.t.Fatalf("%s of %s: %d items, error %v; the model %d items, error %v", method, v.name, len(got), gotErr, len(want), wantErr)
	}
	for i := range want {
		g, w := got[i], want[i]
		g.Record = c.normal(v, g.Record, w.Record)
		if g.Err != nil || g.Applied != w.Applied || g.Now != w.Now || !SameRecord(g.Record, w.Record) {
			c.t.Fatalf("%s of %s, item %d\nanswers  applied %t at %v, error %v, %s\nthe model applied %t at %v, %s",
				method, v.name, i, g.Applied, g.Now.Std(), g.Err, show(g.Record), w.Applied, w.Now.Std(), show(w.Record))
		}
	}
}

// normal gives a record of a store whose fences float the fence of the
// model's, if it has kept their order so far.
func (c *chorus) normal(v *voice, got, want claim.Record) claim.Record {
	c.t.Helper()
	if !v.FencesFloat || got.State == claim.Absent || want.State == claim.Absent {
		return got
	}
	of := v.fences[want.Key]
	if of == nil {
		of = map[claim.Fence]claim.Fence{}
		v.fences[want.Key] = of
	}
	known, ok := of[want.Fence]
	switch {
	case !ok:
		for _, earlier := range of {
			if got.Fence <= earlier {
				c.t.Fatalf("%s: fence %d of a new grant follows %d", v.name, got.Fence, earlier)
			}
		}
		of[want.Fence] = got.Fence
	case known != got.Fence:
		return got
	}
	got.Fence = want.Fence
	return got
}

// noFence is no fence of any grant.
const noFence claim.Fence = -1

// fence translates a fence of the model.
func (v *voice) fence(k claim.Key, f claim.Fence) claim.Fence {
	if !v.FencesFloat {
		return f
	}
	if mine, ok := v.fences[k][f]; ok {
		return mine
	}
	return noFence
}

// sweepAll sweeps the model and every store to the end. All must delete the
// same number of records; which ones, every later answer shows.
func (c *chorus) sweepAll() int {
	c.t.Helper()
	want := c.sweepOne("the model", c.Model)
	for _, v := range c.voices {
		if got := c.sweepOne(v.name, v.store); got != want {
			c.t.Fatalf("%s swept %d records, the model %d", v.name, got, want)
		}
	}
	return want
}

// chorusSweepLimit makes sweeps of a handful of keys take several steps.
const chorusSweepLimit = 2

func (c *chorus) sweepOne(name string, store storage.Store) int {
	c.t.Helper()
	ctx := c.t.Context()
	stats, err := store.Stats(ctx)
	if err != nil {
		c.t.Fatalf("Stats of %s: %v", name, err)
	}
	deleted := 0
	for shard := range stats.Shards {
		s := storage.Sweep{Shard: shard, Limit: chorusSweepLimit}
		for step := 0; ; step++ {
			swept, err := store.Sweep(ctx, s)
			if err != nil || step > sweepStepsMax {
				c.t.Fatalf("Sweep of %s, step %d: %v", name, step, err)
			}
			deleted += swept.Deleted
			if s.Cursor = swept.Cursor; s.Cursor == nil {
				break
			}
		}
	}
	return deleted
}

// listAll reads all pages of l from the model and every store.
func (c *chorus) listAll(l storage.List) {
	c.t.Helper()
	want := c.listOne("the model", c.Model, l)
	for _, v := range c.voices {
		got := c.listOne(v.name, v.store, l)
		if len(got) != len(want) {
			c.t.Fatalf("List of %s has %d records, the model %d: %+v", v.name, len(got), len(want), l)
		}
		for i := range want {
			if rec := c.normal(v, got[i], want[i]); !SameRecord(rec, want[i]) {
				c.t.Fatalf("List of %s, record %d\ngot  %s\nwant %s", v.name, i, show(rec), show(want[i]))
			}
		}
	}
}

func (c *chorus) listOne(name string, store storage.Store, l storage.List) []claim.Record {
	c.t.Helper()
	var all []claim.Record
	for range pagesMax {
		page, err := store.List(c.t.Context(), l)
		if err != nil {
			c.t.Fatalf("List of %s: %v", name, err)
		}
		all = append(all, page.Records...)
		if l.Cursor = page.Cursor; l.Cursor == nil {
			return all
		}
	}
	c.t.Fatalf("List of %s does not end within %d pages", name, pagesMax)
	return nil
}

// scanAll demands the same keys of every store.
func (c *chorus) scanAll() {
	c.t.Helper()
	want := c.scanOne("the model", c.Model)
	for _, v := range c.voices {
		if got := c.scanOne(v.name, v.store); !maps.Equal(got, want) {
			c.t.Fatalf("Scan of %s\ngot  %v\nwant %v", v.name, got, want)
		}
	}
}

func (c *chorus) scanOne(name string, store storage.Store) map[claim.Key]bool {
	c.t.Helper()
	seen := map[claim.Key]bool{}
	if err := store.Scan(c.t.Context(), func(k claim.Key) error { seen[k] = true; return nil }); err != nil {
		c.t.Fatalf("Scan of %s: %v", name, err)
	}
	return seen
}

// tallyAll demands the same counts of every store.
func (c *chorus) tallyAll(step storage.TenantStep) {
	c.t.Helper()
	want := c.tallyOne("the model", c.Model, step)
	for _, v := range c.voices {
		if got := c.tallyOne(v.name, v.store, step); !maps.Equal(got, want) {
			c.t.Fatalf("Tally of %s, %+v\ngot  %+v\nwant %+v", v.name, step, got, want)
		}
	}
}

func (c *chorus) tallyOne(name string, store storage.Store, step storage.TenantStep) map[string]storage.Counts {
	c.t.Helper()
	sum := map[string]storage.Counts{}
	for range pagesMax {
		tallied, err := store.Tally(c.t.Context(), step)
		if err != nil {
			c.t.Fatalf("Tally of %s: %v", name, err)
		}
		for consumer, counts := range tallied.Counts {
			sum[consumer] = sum[consumer].Plus(counts)
		}
		if step.Cursor = tallied.Cursor; step.Cursor == nil {
			return sum
		}
	}
	c.t.Fatalf("Tally of %s does not end within %d steps", name, pagesMax)
	return nil
}

// purgeAll purges a tenant from the model and every store. All must delete the
// same number of records.
func (c *chorus) purgeAll(step storage.TenantStep) int {
	c.t.Helper()
	want := c.purgeOne("the model", c.Model, step)
	for _, v := range c.voices {
		if got := c.purgeOne(v.name, v.store, step); got != want {
			c.t.Fatalf("%s purged %d records, the model %d", v.name, got, want)
		}
	}
	return want
}

func (c *chorus) purgeOne(name string, store storage.Store, step storage.TenantStep) (deleted int) {
	c.t.Helper()
	for range pagesMax {
		purged, err := store.Purge(c.t.Context(), step)
		if err != nil {
			c.t.Fatalf("Purge of %s: %v", name, err)
		}
		deleted += purged.Deleted
		if step.Cursor = purged.Cursor; step.Cursor == nil {
			return deleted
		}
	}
	c.t.Fatalf("Purge of %s does not end within %d steps", name, pagesMax)
	return 0
}

// peek reads records from the model alone.
func (c *chorus) peek(keys ...claim.Key) []claim.Record {
	c.t.Helper()
	found, err := c.Model.Get(c.t.Context(), keys)
	if err != nil {
		c.t.Fatalf("Get of the model: %v", err)
	}
	recs := make([]claim.Record, len(found))
	for i := range found {
		recs[i] = found[i].Record
	}
	return recs
}
