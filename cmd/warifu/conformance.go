package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/pebble"
	"github.com/warifu/warifu/storage/sqlstore"
	"github.com/warifu/warifu/storage/storagetest"
)

func newConformance(sys *system) *cobra.Command {
	var store, storeFile, isolation string
	var mayMigrate bool
	cmd := &cobra.Command{
		Use: "conformance --store STORE", Short: "Run the storage suite on a store", GroupID: groupTools, Args: cobra.NoArgs,
		Long: `Runs the suite that every store has to pass, each case on a store of its own,
with a clock of its own. Stores are:

  mem            the model that the others are compared with
  pebble:DIR     the embedded store, in new folders below DIR (on the disk that
                 is to be trusted), which are removed afterwards
  cockroach://…, postgres://…
                 a database without claims that nothing else uses meanwhile: the
                 suite DELETES all claims there after each case. It is refused
                 when it has any, and when it lacks the tables, unless --migrate
                 is given. Time is the suite's, not the database's

It prints a line for each case, and at the end what it was run against, and ends
with code 1 when one failed.`,
	}
	cmd.Flags().StringVar(&store, "store", "", "mem, pebble:DIR, cockroach://… or postgres://…")
	cmd.Flags().StringVar(&storeFile, "store-file", "", "file with the store's URL, in place of --store")
	cmd.Flags().StringVar(&isolation, "store-isolation", "", "of a database: read committed or serializable; empty: what suits it")
	cmd.Flags().BoolVar(&mayMigrate, "migrate", false, "make the tables in a database that lacks them")
	cmd.RunE = func(*cobra.Command, []string) error {
		name, err := conformanceName(store, storeFile)
		if err != nil {
			return err
		}
		if sqlstore.Supported(name) {
			database, err := parseTarget(name)
			if err != nil {
				return usageError("--store: %w", err)
			}
			return conformanceOnDatabase(cmd.Context(), sys, database, isolation, mayMigrate)
		}
		open, err := conformanceStore(name)
		if err != nil {
			return err
		}
		err = storagetest.RunCases(cmd.Context(), sys.stdout, open)
		if errors.Is(err, storagetest.ErrFailed) {
			return exit(exitFailed, err)
		}
		return err
	}
	return cmd
}

func conformanceStore(name string) (storagetest.Opener, error) {
	dir, onDisk := strings.CutPrefix(name, "pebble:")
	switch {
	case name == "mem":
		return func(_ storagetest.T, clock *storagetest.Clock, grace time.Duration) storage.Store {
			return storagetest.NewModel(clock.Now, grace)
		}, nil
	case onDisk && dir != "":
		return func(t storagetest.T, clock *storagetest.Clock, grace time.Duration) storage.Store {
			return openScratch(t, dir, clock, grace)
		}, nil
	case name == "":
		return nil, usageError("--store is missing: mem, %s", targetForms)
	}
	return nil, usageError("--store: it is mem, %s", targetForms)
}

// conformanceName is the store's name. It never comes from the configuration:
// what is emptied here has to be named here.
func conformanceName(store, file string) (string, error) {
	if file == "" {
		return store, nil
	}
	if store != "" {
		return "", usageError("--store and --store-file are both given; give one of them")
	}
	name, err := readSecretFile(file)
	if err != nil {
		return "", exit(exitUsage, fmt.Errorf("--store-file: %w", err))
	}
	return name, nil
}

// openScratch opens a new store below dir and removes it with the test.
func openScratch(t storagetest.T, dir string, clock *storagetest.Clock, grace time.Duration) storage.Store {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatalf("make %s: %v", dir, err)
	}
	scratch, err := os.MkdirTemp(dir, "conformance-")
	if err != nil {
		t.Fatalf("make a folder: %v", err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(scratch); err != nil {
			t.Errorf("remove %s: %v", scratch, err)
		}
	})
	s, err := pebble.Open(pebble.Config{Dir: scratch, Clock: clock.Now, SweepGrace: grace, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}
