package interceptor

import (
	"context"
	"errors"
	"log/slog"
	"strings"

	"github.com/warifu/warifu/storage"
)

// Redacted returns a handler that takes out of errors of stores what they may
// quote of requests. A database names the row that a statement failed on, and
// the name of a row is an event ID: CockroachDB prints whole keys. What is left
// says which statement failed, and its code. Other errors and values pass as
// they are: they are written here, and quote no events.
//
// What a store says about events stands in quotes; a store that prints them
// bare must not be given such a handler's logger.
func Redacted(h slog.Handler) slog.Handler {
	if _, done := h.(redacting); done {
		return h
	}
	return redacting{h}
}

type redacting struct{ slog.Handler }

// Handle implements slog.Handler.
func (r redacting) Handle(ctx context.Context, record slog.Record) error {
	clean := true
	record.Attrs(func(a slog.Attr) bool {
		_, clean = redactAttr(a)
		return clean
	})
	if clean {
		return r.Handler.Handle(ctx, record)
	}
	out := slog.NewRecord(record.Time, record.Level, record.Message, record.PC)
	record.Attrs(func(a slog.Attr) bool {
		a, _ = redactAttr(a)
		out.AddAttrs(a)
		return true
	})
	return r.Handler.Handle(ctx, out)
}

// WithAttrs implements slog.Handler.
func (r redacting) WithAttrs(attrs []slog.Attr) slog.Handler {
	out := make([]slog.Attr, len(attrs))
	for i := range attrs {
		out[i], _ = redactAttr(attrs[i])
	}
	return redacting{r.Handler.WithAttrs(out)}
}

// WithGroup implements slog.Handler.
func (r redacting) WithGroup(name string) slog.Handler { return redacting{r.Handler.WithGroup(name)} }

// redactAttr returns the attribute as it may be shown, and whether it is as it
// was.
func redactAttr(a slog.Attr) (shown slog.Attr, same bool) {
	switch a.Value.Kind() { //nolint:exhaustive // the others are numbers and times
	case slog.KindString:
		if text := a.Value.String(); fromDatabase(text) {
			return slog.String(a.Key, unquoted(text)), false
		}
	case slog.KindGroup:
		members := a.Value.Group()
		out := make([]slog.Attr, len(members))
		same = true
		for i := range members {
			var as bool
			out[i], as = redactAttr(members[i])
			same = same && as
		}
		return slog.Attr{Key: a.Key, Value: slog.GroupValue(out...)}, same
	case slog.KindAny:
		err, ok := a.Value.Any().(error)
		if ok && err != nil && (fromStore(err) || fromDatabase(err.Error())) {
			return slog.String(a.Key, unquoted(err.Error())), false
		}
	}
	return a, true
}

// fromDatabase recognises the text of a database's error wherever it came to
// be text.
func fromDatabase(text string) bool { return strings.Contains(text, "SQLSTATE") }

func fromStore(err error) bool {
	return errors.Is(err, storage.ErrUnknown) || errors.Is(err, storage.ErrUnavailable) || errors.Is(err, storage.ErrDamaged)
}

// unquoted is text without what stands in double or single quotes. A quote that
// does not end takes the rest with it. An apostrophe within a word is no quote.
func unquoted(text string) string {
	if !strings.ContainsAny(text, `"'`) {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c != '"' && c != '\'' || c == '\'' && i > 0 && letter(text[i-1]) {
			b.WriteByte(c)
			continue
		}
		b.WriteByte(c)
		b.WriteString("…")
		if i = closing(text, i); i < len(text) {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// closing is where the quote that begins at i ends; the text's length when it
// does not.
func closing(text string, i int) int {
	quote := text[i]
	for i++; i < len(text) && text[i] != quote; i++ {
		if text[i] == '\\' {
			i++
		}
	}
	return min(i, len(text))
}

func letter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }
