package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/warifu/warifu/storage/sqlstore"
	"github.com/warifu/warifu/storage/sqlstore/migrate"
)

func newMigrate(sys *system) *cobra.Command {
	cmd := &cobra.Command{
		Use: "migrate", Short: "Bring the schema of a database up to this program", GroupID: groupServer, Args: cobra.NoArgs, RunE: needsCommand,
		Long: `Servers never change the schema of their database: they refuse one that is older
than they need. Migrate before the new version is started. Servers of the version
before go on working on the new schema.

The database is that of --store, or of the configuration of 'warifu serve'.`,
	}
	cmd.AddCommand(newMigrateUp(sys), newMigrateStatus(sys), newMigratePrint(sys))
	return cmd
}

func newMigrateUp(sys *system) *cobra.Command {
	cmd := &cobra.Command{
		Use: "up", Short: "Apply what is missing", Args: cobra.NoArgs,
		Long: `Applies what is missing, one statement at a time, and prints it. It may be ended
at any moment and run again; several at once wait for each other.`,
	}
	storeFlags(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		s, err := openSchema(ctx, sys, cmd)
		if err != nil {
			return err
		}
		defer s.close()
		applied, err := s.migrator.Up(ctx)
		for _, step := range applied {
			if _, err := fmt.Fprintf(sys.stdout, "applied %s (%s)\n", step.ID(), step.File); err != nil {
				return fmt.Errorf("print: %w", err)
			}
		}
		if err != nil {
			return s.target.failed("migrate", err)
		}
		return s.sayVersion(ctx, sys.stdout)
	}
	return cmd
}

func newMigrateStatus(sys *system) *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use: "status", Short: "Say where the schema is; code 6: something is missing", Args: cobra.NoArgs,
		Long: `Says where the schema is and what 'warifu migrate up' would apply, and changes
nothing. It ends with code 6 where something is missing, and with 0 where nothing
is, also when the schema is newer than this program.`,
	}
	storeFlags(cmd)
	out.bind(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		if err := out.validate(); err != nil {
			return err
		}
		s, err := openSchema(cmd.Context(), sys, cmd)
		if err != nil {
			return err
		}
		defer s.close()
		now, err := s.migrator.Status(cmd.Context())
		if err != nil {
			return s.target.failed("look at", err)
		}
		shown := statusOf(now)
		if err := out.write(sys.stdout, shown, shown.table); err != nil {
			return err
		}
		if len(shown.Pending) > 0 {
			return exit(exitSchema, nil)
		}
		return nil
	}
	return cmd
}

func newMigratePrint(sys *system) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "print", Short: "Write what is missing as SQL, for databases that others look after", Args: cobra.NoArgs,
		Long: `Writes what 'warifu migrate up' would do as SQL that leaves the same behind. With
--all it writes the whole schema without connecting: of the store's URL only the
scheme is used then.`,
	}
	storeFlags(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "the whole schema, without asking the database what it has")
	cmd.RunE = func(*cobra.Command, []string) error {
		s, err := openSchema(cmd.Context(), sys, cmd)
		if err != nil {
			return err
		}
		defer s.close()
		steps := s.steps
		if !all {
			now, err := s.migrator.Status(cmd.Context())
			if err != nil {
				return s.target.failed("look at", err)
			}
			steps = now.Pending
		}
		if len(steps) == 0 {
			_, err := fmt.Fprintln(sys.stderr, "nothing is missing")
			return err
		}
		return migrate.Print(sys.stdout, s.dialect, steps)
	}
	return cmd
}

// schema is the schema of a database and what this program knows of it.
type schema struct {
	target   target
	dialect  migrate.Dialect
	steps    []migrate.Step
	migrator *migrate.Migrator
	close    func()
}

// openSchema prepares the work on the schema of the configured store. It
// connects only when it is used.
func openSchema(ctx context.Context, sys *system, cmd *cobra.Command) (*schema, error) {
	c, err := loadConfig(sys, cmd.Flags(), serveDefault)
	if err != nil {
		return nil, err
	}
	if !c.target.sql() {
		return nil, usageError("the embedded store in %s has no schema to migrate; --store names a database: cockroach://… or postgres://…", c.target.dir)
	}
	return schemaOf(ctx, sys, c)
}

func schemaOf(ctx context.Context, sys *system, c *config) (*schema, error) {
	level, err := c.level()
	if err != nil {
		return nil, exit(exitUsage, err)
	}
	dialect, err := sqlstore.DialectOf(c.target.url)
	if err != nil {
		return nil, exit(exitUsage, err)
	}
	s := &schema{target: c.target, dialect: migrate.Dialect(dialect)}
	if s.steps, err = schemaSteps(c.target.url); err != nil {
		return nil, err
	}
	log := sys.logger(c.LogFormat, level)
	pool, err := sqlstore.NewMaintenancePool(ctx, c.sqlConfig(log))
	if err != nil {
		return nil, c.target.failed("connect to", err)
	}
	s.close = pool.Close
	s.migrator, err = migrate.New(migrate.Config{DB: pool, Steps: s.steps, Owner: owner(), Logger: log})
	if err != nil {
		pool.Close()
		return nil, err
	}
	return s, nil
}

// owner is what others see of this process while they wait for it.
func owner() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return fmt.Sprintf("%s, process %d", host, os.Getpid())
}

func (s *schema) sayVersion(ctx context.Context, w io.Writer) error {
	now, err := s.migrator.Status(ctx)
	if err != nil {
		return s.target.failed("look at", err)
	}
	text := fmt.Sprintf("the schema has version %d; nothing is missing", now.Version)
	if now.Newer {
		text += "; it is newer than this program"
	}
	_, err = fmt.Fprintln(w, text)
	return err
}

// schemaStatus is what `warifu migrate status` says.
type schemaStatus struct {
	Version   int64         `json:"version"`
	Known     int64         `json:"known"`
	Newer     bool          `json:"newer"`
	Pending   []pendingStep `json:"pending"`
	Holder    string        `json:"holder,omitempty"`
	HeldUntil string        `json:"heldUntil,omitempty"`
}

type pendingStep struct {
	ID   string `json:"id"`
	File string `json:"file"`
}

func statusOf(now migrate.Status) schemaStatus {
	out := schemaStatus{Version: now.Version, Known: now.Known, Newer: now.Newer, Holder: now.Holder, Pending: []pendingStep{}}
	for _, step := range now.Pending {
		out.Pending = append(out.Pending, pendingStep{step.ID(), step.File})
	}
	if now.Holder != "" {
		out.HeldUntil = now.HeldUntil.UTC().Format(time.RFC3339)
	}
	return out
}

func (s schemaStatus) table(w io.Writer) {
	row(w, "version", strconv.FormatInt(s.Version, 10))
	row(w, "known", strconv.FormatInt(s.Known, 10))
	if s.Newer {
		row(w, "newer", "the schema has more than this program knows")
	}
	if s.Holder != "" {
		row(w, "migrating", plain(s.Holder)+", until "+s.HeldUntil)
	}
	for _, step := range s.Pending {
		row(w, "missing", step.ID+" ("+step.File+")")
	}
}
