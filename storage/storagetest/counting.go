package storagetest

import (
	"context"
	"sync"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// Method names a method of storage.Store.
type Method string

// The methods that decorators count and fail.
const (
	InsertOrGet Method = "InsertOrGet"
	Get         Method = "Get"
	Transition  Method = "Transition"
	Replace     Method = "Replace"
	SweepStep   Method = "Sweep"
	ListPage    Method = "List"
	Scan        Method = "Scan"
	TallyStep   Method = "Tally"
	PurgeStep   Method = "Purge"
)

// Counting counts the calls that reach a store, and their items. The budgets
// of trips are tests on it.
type Counting struct {
	storage.Store

	mu struct {
		sync.Mutex
		calls, items map[Method]int
	}
}

// NewCounting returns a decorator of store that has counted nothing.
func NewCounting(store storage.Store) *Counting {
	c := &Counting{Store: store}
	c.Reset()
	return c
}

// Reset forgets what was counted.
func (c *Counting) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.calls, c.mu.items = map[Method]int{}, map[Method]int{}
}

// Calls returns how often m was called.
func (c *Counting) Calls(m Method) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.calls[m]
}

// Items returns how many items all calls of m had together.
func (c *Counting) Items(m Method) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.items[m]
}

// Trips returns how many calls of the data path were made: InsertOrGet, Get,
// Transition and Replace.
func (c *Counting) Trips() int {
	return c.Calls(InsertOrGet) + c.Calls(Get) + c.Calls(Transition) + c.Calls(Replace)
}

func (c *Counting) count(m Method, items int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.calls[m]++
	c.mu.items[m] += items
}

// InsertOrGet implements storage.Store.
func (c *Counting) InsertOrGet(ctx context.Context, reqs []claim.Request) ([]storage.Found, error) {
	c.count(InsertOrGet, len(reqs))
	return c.Store.InsertOrGet(ctx, reqs)
}

// Get implements storage.Store.
func (c *Counting) Get(ctx context.Context, keys []claim.Key) ([]storage.Found, error) {
	c.count(Get, len(keys))
	return c.Store.Get(ctx, keys)
}

// Transition implements storage.Store.
func (c *Counting) Transition(ctx context.Context, ts []claim.Transition) ([]storage.Found, error) {
	c.count(Transition, len(ts))
	return c.Store.Transition(ctx, ts)
}

// Replace implements storage.Store.
func (c *Counting) Replace(ctx context.Context, swaps []claim.Swap) ([]storage.Found, error) {
	c.count(Replace, len(swaps))
	return c.Store.Replace(ctx, swaps)
}

// Sweep implements storage.Store; its items are the candidates looked at.
func (c *Counting) Sweep(ctx context.Context, s storage.Sweep) (storage.Swept, error) {
	swept, err := c.Store.Sweep(ctx, s)
	c.count(SweepStep, swept.Looked)
	return swept, err
}

// List implements storage.Store; its items are the records of the page.
func (c *Counting) List(ctx context.Context, l storage.List) (storage.Page, error) {
	page, err := c.Store.List(ctx, l)
	c.count(ListPage, len(page.Records))
	return page, err
}

// Tally implements storage.Store; its items are the records counted.
func (c *Counting) Tally(ctx context.Context, step storage.TenantStep) (storage.Tallied, error) {
	tallied, err := c.Store.Tally(ctx, step)
	keys := 0
	for _, counts := range tallied.Counts {
		keys += int(counts.Keys)
	}
	c.count(TallyStep, keys)
	return tallied, err
}

// Purge implements storage.Store; its items are the records looked at.
func (c *Counting) Purge(ctx context.Context, step storage.TenantStep) (storage.Purged, error) {
	purged, err := c.Store.Purge(ctx, step)
	c.count(PurgeStep, purged.Looked)
	return purged, err
}

// Scan implements storage.Store; its items are the keys it was called with.
func (c *Counting) Scan(ctx context.Context, each func(claim.Key) error) error {
	keys := 0
	err := c.Store.Scan(ctx, func(k claim.Key) error {
		keys++
		return each(k)
	})
	c.count(Scan, keys)
	return err
}
