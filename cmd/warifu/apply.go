package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/api/gen/warifu/v1/warifuv1connect"
)

func newApply(sys *system) *cobra.Command {
	var a applier
	var file string
	var prune bool
	cmd := &cobra.Command{
		Use: "apply -f FILE", Short: "Make tenants and consumers what a file says", GroupID: groupAdmin, Args: cobra.NoArgs,
		Long: `Compares a file with what is declared on the server, shows the difference, and
makes it: a second run says "no change". What a file leaves out of a tenant or a
consumer is the default. A file looks so:

  tenants:                       # with a key of the platform
    - name: shop
      strict: true
      quotas: {retained_keys_max: 1000000}
      consumers:
        - name: inventory
          redelivery_window: 4h
          on_lease_loss: HOLD
  consumers: []                  # with a key of one tenant, or --tenant

Nothing is deleted unless --prune says so: then consumers go that a list of
consumers does not name; with an empty list, 'consumers: []', all of that tenant.
Where a tenant has no list, its consumers are not looked at. Tenants are never
deleted here. A policy that promises less, and everything that --prune deletes, has
to be confirmed.`,
	}
	a.bind(sys, cmd)
	cmd.Flags().StringVarP(&file, "file", "f", "", "the file; -: standard input (required)")
	cmd.Flags().BoolVar(&prune, "prune", false, "delete consumers that the file does not name, of tenants that have a list of consumers in it")
	cmd.RunE = func(*cobra.Command, []string) error {
		if file == "" {
			return usageError("--file is missing")
		}
		wanted, err := readDeclaration(sys, file)
		if err != nil {
			return err
		}
		if err := a.find(wanted); err != nil {
			return err
		}
		todo, err := a.compare(cmd.Context(), wanted, prune)
		if err != nil {
			return err
		}
		return a.run(cmd.Context(), todo)
	}
	return cmd
}

// applier makes a server what a file says.
type applier struct {
	sys      *system
	client   clientFlags
	change   changeFlags
	out      output
	team     warifuv1connect.TenantAdminServiceClient
	platform warifuv1connect.PlatformAdminServiceClient // nil: the file names no tenants
}

func (a *applier) bind(sys *system, cmd *cobra.Command) {
	a.sys = sys
	a.client.bind(sys, cmd)
	a.client.bindTenant(cmd)
	a.out.bind(cmd)
	a.change.bindReason(sys, cmd)
}

func (a *applier) find(wanted *declaration) (err error) {
	if err := a.out.validate(); err != nil {
		return err
	}
	if a.team, err = a.client.team(); err != nil {
		return err
	}
	if len(wanted.Tenants) > 0 {
		a.platform, err = a.client.platform()
	}
	return err
}

// compare finds out what is to be done.
func (a *applier) compare(ctx context.Context, wanted *declaration, prune bool) ([]*step, error) {
	var todo []*step
	for i := range wanted.Tenants {
		t := &wanted.Tenants[i]
		first, exists, err := a.compareTenant(ctx, t)
		if err != nil {
			return nil, err
		}
		if first != nil {
			todo = append(todo, first)
		}
		if t.Consumers == nil { // no list is not an empty list
			continue
		}
		more, err := a.compareConsumers(ctx, t.Name, exists, t.Consumers, prune)
		if err != nil {
			return nil, err
		}
		todo = append(todo, more...)
	}
	if wanted.Consumers == nil {
		return todo, nil
	}
	more, err := a.compareConsumers(ctx, a.client.actsFor(), true, wanted.Consumers, prune)
	return append(todo, more...), err
}

// run shows the difference, asks where it has to, and makes it in order.
func (a *applier) run(ctx context.Context, todo []*step) error {
	dangerous := false
	for _, s := range todo {
		s.show(a.sys.stderr)
		dangerous = dangerous || len(s.warnings) > 0
	}
	if len(todo) == 0 {
		return a.print(todo)
	}
	if err := a.change.prepare(); err != nil {
		return err
	}
	if err := a.rehearse(ctx, todo); err != nil {
		return err
	}
	if a.change.dryRun {
		return a.print(todo)
	}
	if dangerous {
		if err := a.change.confirm("apply"); err != nil {
			return err
		}
	}
	for n, s := range todo {
		if _, err := s.send(ctx, a.changeOf(s, false)); err != nil {
			return exit(exitCodeOf(err), fmt.Errorf("%s: %w\nmade %d of %s; run it again, and it goes on with the rest", s.name(), err, n, changesOf(len(todo))))
		}
		s.Done = true
	}
	return a.print(todo)
}

// rehearse has the server judge every change before the first is made, and says
// what they mean for what is stored. What needs another change first cannot be
// rehearsed.
func (a *applier) rehearse(ctx context.Context, todo []*step) error {
	var faults []error
	for _, s := range todo {
		if s.unrehearsed {
			continue
		}
		what, err := s.send(ctx, a.changeOf(s, true))
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", s.name(), err))
			continue
		}
		if len(s.warnings) > 0 {
			row(a.sys.stderr, s.name()+":")
			consequence(a.sys.stderr, what)
		}
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("%w\nnothing was changed", err)
	}
	return nil
}

// changeOf is the same for a step whenever it is sent.
func (a *applier) changeOf(s *step, dryRun bool) *warifuv1.Change {
	return &warifuv1.Change{Reason: a.change.reason, ChangeId: s.id, DryRun: dryRun, ExpectedVersion: s.version}
}

func (a *applier) print(todo []*step) error {
	if todo == nil {
		todo = []*step{}
	}
	return a.out.write(a.sys.stdout, todo, func(w io.Writer) {
		switch {
		case len(todo) == 0:
			row(w, "no change")
		case a.change.dryRun:
			row(w, "would make "+changesOf(len(todo)))
		default:
			row(w, "made "+changesOf(len(todo)))
		}
	})
}

func changesOf(n int) string {
	if n == 1 {
		return "1 change"
	}
	return fmt.Sprintf("%d changes", n)
}
