package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/api/gen/warifu/v1/warifuv1connect"
)

func newConsumers(sys *system) *cobra.Command {
	cmd := &cobra.Command{
		Use: "consumers", Short: "Declare consumers and their policies", GroupID: groupAdmin, Args: cobra.NoArgs, RunE: needsCommand,
	}
	cmd.AddCommand(newConsumersPut(sys), newConsumersGet(sys), newConsumersList(sys), newConsumersDelete(sys))
	return cmd
}

// teamCommand is a command about something of one tenant.
type teamCommand struct {
	sys    *system
	client clientFlags
	change changeFlags
	out    output
	api    warifuv1connect.TenantAdminServiceClient
}

// bindRead is for commands that change nothing.
func (c *teamCommand) bindRead(sys *system, cmd *cobra.Command) {
	c.sys = sys
	c.client.bind(sys, cmd)
	c.client.bindTenant(cmd)
	c.out.bind(cmd)
}

func (c *teamCommand) bind(sys *system, cmd *cobra.Command) {
	c.bindRead(sys, cmd)
	c.change.bind(sys, cmd)
}

// find checks the output flag and finds the service.
func (c *teamCommand) find() (err error) {
	if err := c.out.validate(); err != nil {
		return err
	}
	c.api, err = c.client.team()
	return err
}

// prepare is find for a change.
func (c *teamCommand) prepare() error {
	if err := c.find(); err != nil {
		return err
	}
	return c.change.prepare()
}

func (c *teamCommand) consumer(ctx context.Context, name string) (*warifuv1.Consumer, error) {
	found, err := call(ctx, &c.client, c.api.GetConsumer, &warifuv1.GetConsumerRequest{Tenant: c.client.actsFor(), Name: name})
	return found.GetConsumer(), err
}

func (c *teamCommand) printConsumer(m *warifuv1.Consumer) error {
	return printMessage(c.sys, &c.out, m, func(w io.Writer) {
		row(w, "name", plain(m.GetName()))
		for _, field := range declared(m.GetPolicy()).rows() {
			row(w, field[0], field[1])
		}
		row(w, "note", orDash(plain(m.GetNote())))
		row(w, "version", number(m.GetVersion()))
		row(w, "policy version", orDash(m.GetPolicyVersion()))
		row(w, "created", instant(m.GetCreatedAt()))
		row(w, "updated", instant(m.GetUpdatedAt()))
	})
}

func newConsumersPut(sys *system) *cobra.Command {
	var c teamCommand
	var policy declaredPolicy
	var note string
	var keep bool
	cmd := &cobra.Command{
		Use: "put NAME", Short: "Declare a consumer, or replace its policy", Args: cobra.ExactArgs(1),
		ValidArgsFunction: c.client.completeFirst(c.client.completeConsumers),
		Long: `Declares a consumer, or replaces its policy as a whole: what is left out is the
default. With --keep what is left out stays as it is.

A policy that promises less than the one before is shown with what it means for
what is stored, and has to be confirmed.`,
	}
	c.bind(sys, cmd)
	c.change.bindVersion(cmd)
	policy.bind(cmd)
	cmd.Flags().StringVar(&note, "note", "", "a note for people")
	cmd.Flags().BoolVar(&keep, "keep", false, "keep what is stored of all that is not given")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if _, err := policy.message(); err != nil {
			return err
		}
		if err := c.prepare(); err != nil {
			return err
		}
		stored, err := c.consumer(cmd.Context(), args[0])
		if err != nil && exitCodeOf(err) != exitNotFound {
			return err
		}
		if keep {
			if stored == nil {
				return err
			}
			policy.keep(cmd, stored.GetPolicy())
			if !cmd.Flags().Changed("note") {
				note = stored.GetNote()
			}
		}
		p, err := policy.message()
		if err != nil {
			return err
		}
		return c.put(cmd.Context(), stored, &warifuv1.Consumer{Name: args[0], Policy: p, Note: note})
	}
	return cmd
}

// put declares what next says over what is stored, which may be nil.
func (c *teamCommand) put(ctx context.Context, stored, next *warifuv1.Consumer) error {
	version, err := c.change.version(func() (int64, error) { return stored.GetVersion(), nil })
	if err != nil {
		return err
	}
	var less []string
	if stored != nil {
		less = weakens(stored.GetPolicy(), next.GetPolicy())
	}
	for _, text := range less {
		row(c.sys.stderr, "- "+text)
	}
	name := next.GetName()
	err = c.change.make(ctx, name, len(less) > 0, func(ctx context.Context, dryRun bool) (*warifuv1.Consequence, error) {
		answer, err := call(ctx, &c.client, c.api.PutConsumer, &warifuv1.PutConsumerRequest{
			Tenant: c.client.actsFor(), Name: name, Policy: next.GetPolicy(), Note: next.GetNote(), Change: c.change.change(version, dryRun),
		})
		if err == nil && answer.GetConsumer() != nil && !dryRun {
			next = answer.GetConsumer()
		}
		return answer.GetConsequence(), err
	})
	if err != nil {
		return err
	}
	return c.printConsumer(next)
}

func newConsumersGet(sys *system) *cobra.Command {
	var c teamCommand
	cmd := &cobra.Command{
		Use: "get NAME", Short: "Show a declared consumer; '-' is a default", Args: cobra.ExactArgs(1),
		ValidArgsFunction: c.client.completeFirst(c.client.completeConsumers),
	}
	c.bindRead(sys, cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if err := c.find(); err != nil {
			return err
		}
		found, err := c.consumer(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return c.printConsumer(found)
	}
	return cmd
}

func newConsumersList(sys *system) *cobra.Command {
	var c teamCommand
	var list listFlags
	var prefix string
	cmd := &cobra.Command{Use: "list", Short: "List declared consumers by name", Args: cobra.NoArgs}
	c.bindRead(sys, cmd)
	list.bind(cmd, 0)
	cmd.Flags().StringVar(&prefix, "prefix", "", "only names that begin so")
	cmd.RunE = func(*cobra.Command, []string) error {
		api, err := ready(&c.out, &list, c.client.team)
		if err != nil {
			return err
		}
		fetch := func(size uint32, token string) (*warifuv1.ListConsumersResponse, error) {
			return call(cmd.Context(), &c.client, api.ListConsumers, &warifuv1.ListConsumersRequest{
				Tenant: c.client.actsFor(), Prefix: prefix, PageSize: size, PageToken: token,
			})
		}
		return printList(sys, &list, &c.out, fetch, (*warifuv1.ListConsumersResponse).GetConsumers,
			[]string{"NAME", "WINDOW", "RETENTION", "ON LEASE LOSS", "ON UNAVAILABLE", "VERSION", "UPDATED"}, func(m *warifuv1.Consumer) []string {
				p := declared(m.GetPolicy())
				return []string{
					plain(m.GetName()), orDash(p.RedeliveryWindow), orDash(p.Retention), p.OnLeaseLoss, p.OnUnavailable,
					number(m.GetVersion()), instant(m.GetUpdatedAt()),
				}
			})
	}
	return cmd
}

func newConsumersDelete(sys *system) *cobra.Command {
	var c teamCommand
	cmd := &cobra.Command{
		Use: "delete NAME", Short: "Take a declaration back; records stay until they expire", Args: cobra.ExactArgs(1),
		ValidArgsFunction: c.client.completeFirst(c.client.completeConsumers),
	}
	c.bind(sys, cmd)
	c.change.bindVersion(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if err := c.prepare(); err != nil {
			return err
		}
		version, err := c.change.version(func() (int64, error) {
			found, err := c.consumer(cmd.Context(), args[0])
			return found.GetVersion(), err
		})
		if err != nil {
			return err
		}
		var last *warifuv1.DeleteConsumerResponse
		err = c.change.make(cmd.Context(), args[0], true, func(ctx context.Context, dryRun bool) (*warifuv1.Consequence, error) {
			last, err = call(ctx, &c.client, c.api.DeleteConsumer, &warifuv1.DeleteConsumerRequest{
				Tenant: c.client.actsFor(), Name: args[0], Change: c.change.change(version, dryRun),
			})
			return last.GetConsequence(), err
		})
		if err != nil {
			return err
		}
		return printMessage(sys, &c.out, last, func(w io.Writer) { row(w, c.change.done("deleted", plain(args[0]))) })
	}
	return cmd
}
