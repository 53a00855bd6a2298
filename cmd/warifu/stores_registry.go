package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/warifu/warifu/storage/pebble"
	"github.com/warifu/warifu/storage/registry"
	"github.com/warifu/warifu/storage/sqlstore"
)

// openRegistry opens the registry of the configured store for a command that
// works without a server. The caller closes it. An embedded store that a server
// holds is refused with exitPrecondition, a database with an older schema with
// exitSchema.
func openRegistry(ctx context.Context, sys *system, c *config) (registry.Registry, func() error, error) {
	if c.target.sql() {
		return openSQLRegistry(ctx, sys, c)
	}
	level, err := c.level()
	if err != nil {
		return nil, nil, exit(exitUsage, err)
	}
	if held := examineLock(c.target.dir); strings.HasPrefix(held.Detail, "held") && holdsStore(c.target.dir) {
		return nil, nil, exit(exitPrecondition, fmt.Errorf(
			"a server is running on %s, and the embedded store belongs to one process: stop it, run this again, and start it", c.target.dir))
	}
	var fatal string // a disk error, after which the store takes nothing more
	store, err := pebble.Open(pebble.Config{
		Dir: c.target.dir, Clock: sys.now, Logger: sys.logger(c.LogFormat, level), Monotonic: monotonicOf(sys),
		Fatal: func(cause string) { fatal = cause },
	})
	if err != nil {
		return nil, nil, fmt.Errorf("open the store in %s: %w", c.target.dir, err)
	}
	return store.Registry(), func() error {
		err := store.Close()
		if fatal != "" {
			err = errors.Join(err, exit(exitStore, errors.New(fatal)))
		}
		return err
	}, nil
}

func openSQLRegistry(ctx context.Context, sys *system, c *config) (registry.Registry, func() error, error) {
	level, err := c.level()
	if err != nil {
		return nil, nil, exit(exitUsage, err)
	}
	cfg := c.sqlConfig(sys.logger(c.LogFormat, level))
	cfg.Monotonic = monotonicOf(sys)
	store, err := sqlstore.Open(ctx, cfg)
	if err != nil {
		return nil, nil, c.target.failed("open", err)
	}
	if err := checkSchema(ctx, cfg); err != nil {
		return nil, nil, errors.Join(c.target.failed("open", err), store.Close())
	}
	return store.Registry(), store.Close, nil
}

func monotonicOf(sys *system) func() time.Duration {
	started := sys.now()
	return func() time.Duration { return sys.now().Sub(started) }
}

// holdsStore reports whether a folder has an embedded store.
func holdsStore(dir string) bool {
	found, err := filepath.Glob(filepath.Join(dir, "STORE"))
	return err == nil && len(found) > 0
}
