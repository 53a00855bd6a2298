package sealed

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/warifu/warifu/storage/claim"
)

// NoticeEvery is how often each cause for which results go without their bytes
// is logged at most. The counters count all.
const NoticeEvery = time.Minute

// cause is why a result goes without its bytes.
type cause uint8

const (
	unavailable cause = iota
	damaged
	unkept
	causes
)

const (
	textUnavailable = "completed events are answered without their results, whose keys cannot be had now"
	textDamaged     = "completed events are answered without their results, which do not open: they are damaged, or were changed"
	textUnkept      = "events are completed without their results, because there is no key to seal them with; they are lost"
)

// notices logs causes, each at most once in NoticeEvery. A nil logger is told
// nothing.
type notices struct {
	logger *slog.Logger
	clock  func() time.Time

	mu struct {
		sync.Mutex
		next  [causes]time.Time
		quiet [causes]int64 // since the last that was logged
	}
}

// note logs that key is an example of a cause, unless it was logged a moment ago.
func (n *notices) note(ctx context.Context, why cause, key *claim.Key, err error) {
	if n.logger == nil {
		return
	}
	quiet, say := n.due(why)
	if !say {
		return
	}
	about := []any{
		slog.Int64("tenant", int64(key.Tenant)), slog.String("consumer", key.Consumer),
		slog.Int64("others_before", quiet), slog.Any("error", err),
	}
	switch why {
	case unavailable:
		n.logger.WarnContext(ctx, textUnavailable, about...) // that may pass
	case damaged:
		n.logger.ErrorContext(ctx, textDamaged, about...)
	case unkept:
		n.logger.ErrorContext(ctx, textUnkept, about...)
	case causes:
	}
}

func (n *notices) due(why cause) (quiet int64, say bool) {
	now := n.clock()
	n.mu.Lock()
	defer n.mu.Unlock()
	if now.Before(n.mu.next[why]) {
		n.mu.quiet[why]++
		return 0, false
	}
	quiet, n.mu.quiet[why], n.mu.next[why] = n.mu.quiet[why], 0, now.Add(NoticeEvery)
	return quiet, true
}
