package interceptor

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/warifu/warifu/storage"
)

// TestRedacted: what a database quotes does not reach the log, however it gets
// there, and what is written here does.
func TestRedacted(t *testing.T) {
	t.Parallel()
	const canary = "CANARY"
	cockroach := errors.New(`ERROR: restart transaction: TransactionRetryWithProtoRefreshError: WriteTooOldError: key /Table/106/1/7/"orders"/"` + canary + ` \"x` + canary + `"/0 (SQLSTATE 40001)`)
	for name, c := range map[string]struct {
		attr slog.Attr
		want string
	}{
		"raw":           {slog.Any("error", cockroach), "SQLSTATE 40001"},
		"under unknown": {slog.Any("error", fmt.Errorf("%w: row '%s it''s %[2]s'", storage.ErrUnknown, canary)), "outcome unknown"},
		"told":          {slog.String("cause", cockroach.Error()), "restart transaction"},
		"in a group":    {slog.Group("g", slog.Any("error", cockroach)), "Table/106"},
		"unclosed":      {slog.Any("error", fmt.Errorf(`%w: near "%s`, storage.ErrDamaged, canary)), "near"},
		"apostrophe":    {slog.Any("error", fmt.Errorf(`%w: the store's row "%s"`, storage.ErrDamaged, canary)), "the store's row"},
		"our own":       {slog.Any("error", errors.New(`tenant "acme" is faulty`)), `acme`},
	} {
		var log bytes.Buffer
		logger := slog.New(Redacted(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
		logger.LogAttrs(t.Context(), slog.LevelDebug, "m", slog.Int("n", 1), c.attr)
		slog.New(logger.Handler().WithAttrs([]slog.Attr{c.attr})).WithGroup("g").Debug("m", "n", 2)
		if got := log.String(); strings.Contains(got, canary) || strings.Count(got, c.want) != 2 || !strings.Contains(got, "n=1") || !strings.Contains(got, "g.n=2") {
			t.Errorf("%s: %s", name, got)
		}
	}
	if h := Redacted(slog.DiscardHandler); Redacted(h) != h {
		t.Error("a handler is wrapped twice")
	}
}

func TestEventHash(t *testing.T) {
	t.Parallel()
	// printf %s order-1 | openssl dgst -sha256 -hmac 0123456789abcdef
	if got := EventHash([]byte("0123456789abcdef"), "order-1"); len(got) != 16 || got != "b50d76ee9190799b" {
		t.Errorf("hash %s", got)
	}
}
