package main

import (
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/lmittmann/tint"
	"github.com/mattn/go-isatty"
)

// system is what the process takes from the world around it. Commands read it
// from here and nowhere else.
type system struct {
	args           []string
	environ        []string // NAME=value
	stdin          io.Reader
	stdout, stderr io.Writer
	now            func() time.Time
}

// env returns an environment variable's value; empty and unset are the same.
func (s *system) env(name string) string {
	for _, entry := range slices.Backward(s.environ) { // as in exec: the last one counts
		if n, v, ok := strings.Cut(entry, "="); ok && n == name {
			return v
		}
	}
	return ""
}

// isTerminal reports whether a stream is somebody's terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && (isatty.IsTerminal(f.Fd()) || isatty.IsCygwinTerminal(f.Fd()))
}

// colour reports whether a stream may be given colours (https://no-color.org).
func (s *system) colour(stream any) bool {
	return isTerminal(stream) && s.env("NO_COLOR") == "" && s.env("TERM") != "dumb"
}

// The values of log_format.
const (
	logAuto = "auto" // text on a terminal, JSON elsewhere
	logText = "text"
	logJSON = "json"
)

// logger writes to stderr: stdout belongs to what a command prints.
func (s *system) logger(format string, level slog.Level) *slog.Logger {
	if format == logText || (format == logAuto && isTerminal(s.stderr)) {
		return slog.New(tint.NewTextHandler(s.stderr, &tint.Options{
			Level: level, TimeFormat: "15:04:05.000", NoColor: !s.colour(s.stderr),
		}))
	}
	return slog.New(slog.NewJSONHandler(s.stderr, &slog.HandlerOptions{Level: level}))
}
