package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"slices"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/warifu/warifu/storage/registry"
	"github.com/warifu/warifu/storage/sealed"
)

// rewrapActor is who the audit log says did it: the command has no key.
const rewrapActor = "data-keys rewrap"

// rewrapped is what `warifu data-keys rewrap` prints.
type rewrapped struct {
	KEK   string `json:"kek"`
	Rows  int    `json:"rows"` // tenants and consumers
	Keys  int    `json:"keys"` // data keys of theirs
	Store string `json:"store"`
}

func newDataKeysRewrap(sys *system) *cobra.Command {
	r := &rewrapping{sys: sys}
	cmd := &cobra.Command{
		Use: "rewrap", Short: "Wrap all data keys with the first key of seal_key_files, in the store itself", Args: cobra.NoArgs,
		Long: `Wraps every data key of the store with the first key-encryption key of
seal_key_files, so that the others can be taken away. Results are not touched. What
fails is named, the rest is done, and the next run goes on with it.

A key-encryption key is changed so:

  1. Make a new one (32 random bytes) and put it first, under an ID that was never
     used, with the old one behind it: new=/path/new.key,old=/path/old.key.
  2. Embedded store: stop the server, run this command, start the server. Database:
     restart all servers with both keys, run this command. Servers that share a
     database all have to know a key before one of them uses it: put the new one
     last first, restart them all, and only then put it first.
  3. Take the old one out of seal_key_files and restart. With a database run this
     command once more before that: it has to find 0 keys.
  4. Keep the old one as long as backups that were made before: they need it.

The embedded store belongs to one process: stop the server first. With a database
nothing has to be stopped; servers know the change within 5 s.`,
	}
	storeFlags(cmd)
	for _, s := range settings {
		if s.key == "data" || s.key == "seal_key_files" {
			s.bind(cmd, serveDefault)
		}
	}
	r.out.bind(cmd)
	cmd.Flags().StringVar(&r.reason, "reason", "", "why, for the audit log: 1-1024 bytes (required)")
	cmd.RunE = func(*cobra.Command, []string) error {
		if err := r.validate(); err != nil {
			return err
		}
		c, err := loadConfig(sys, cmd.Flags(), serveDefault)
		if err != nil {
			return err
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		return r.run(ctx, c)
	}
	return cmd
}

// rewrapping wraps data keys anew.
type rewrapping struct {
	sys    *system
	out    output
	reason string
}

func (r *rewrapping) validate() error {
	if n := len(r.reason); n == 0 || n > reasonBytesMax {
		return usageError("--reason: it says why, in 1-%d bytes, for the audit log", reasonBytesMax)
	}
	return r.out.validate()
}

func (r *rewrapping) run(ctx context.Context, c *config) (err error) {
	keks, err := c.keks()
	if err != nil {
		return exit(exitUsage, fmt.Errorf("configuration: %w", err))
	}
	if len(keks) == 0 {
		return usageError("seal_key_files is empty: name the key to wrap with first, and those that were used until now behind it")
	}
	if !c.target.sql() && !holdsStore(c.target.dir) { // opening it would make one
		return exit(exitPrecondition, fmt.Errorf("there is no store in %s; --data or --store names its place", c.target.dir))
	}
	rows, closeStore, err := openRegistry(ctx, r.sys, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeStore()) }()
	done, err := r.wrap(ctx, rows, keks)
	if err != nil {
		err = r.explained(ctx, rows, keks, c.target.failed("wrap all data keys in", err))
	}
	// What was done is done, also where the rest failed.
	return errors.Join(err, r.print(rewrapped{KEK: keks[0].ID(), Rows: done.Rows, Keys: done.Keys, Store: c.target.String()}))
}

func (r *rewrapping) wrap(ctx context.Context, rows registry.Registry, keks []sealed.KEK) (sealed.Rewrapped, error) {
	ring, err := sealed.NewRing(sealed.RingConfig{Registry: rows, KEKs: keks, Clock: r.sys.now})
	if err != nil {
		return sealed.Rewrapped{}, err
	}
	return ring.Rewrap(ctx, keks[0].ID(), registry.AuditEntry{Actor: rewrapActor, Reason: r.reason})
}

// explained gives an error that no other try would mend its code: a key that is
// not configured.
func (r *rewrapping) explained(ctx context.Context, rows registry.Registry, keks []sealed.KEK, err error) error {
	all, fault := rows.Load(ctx, 0)
	if fault != nil {
		return err
	}
	for id := range liveKeys(&all) {
		if !slices.ContainsFunc(keks, func(k sealed.KEK) bool { return k.ID() == id }) {
			return exit(exitUsage, fmt.Errorf("%w\nseal_key_files has to name %q, too", err, id))
		}
	}
	return err
}

func (r *rewrapping) print(done rewrapped) error {
	return r.out.write(r.sys.stdout, done, func(w io.Writer) {
		row(w, "wrapped with", plain(done.KEK))
		row(w, "data keys", strconv.Itoa(done.Keys))
		row(w, "of tenants and consumers", strconv.Itoa(done.Rows))
		row(w, "store", done.Store)
	})
}
