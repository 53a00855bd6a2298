package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/api/gen/warifu/v1/warifuv1connect"
)

func newTenants(sys *system) *cobra.Command {
	cmd := &cobra.Command{
		Use: "tenants", Short: "Make, change and end tenants; needs a key of the platform", GroupID: groupAdmin, Args: cobra.NoArgs, RunE: needsCommand,
	}
	cmd.AddCommand(newTenantsCreate(sys), newTenantsList(sys), newTenantsGet(sys), newTenantsUpdate(sys))
	for _, verb := range []tenantVerb{suspendVerb, resumeVerb, deleteVerb} {
		cmd.AddCommand(newTenantsVerb(sys, verb))
	}
	return cmd
}

// tenantCommand is a command about one tenant.
type tenantCommand struct {
	sys    *system
	client clientFlags
	change changeFlags
	out    output
	api    warifuv1connect.PlatformAdminServiceClient
	seen   int64 // the number of the tenant that was looked at
}

func (c *tenantCommand) bind(sys *system, cmd *cobra.Command) {
	c.sys = sys
	c.client.bind(sys, cmd)
	c.out.bind(cmd)
	c.change.bind(sys, cmd)
}

// prepare checks what needs no server and finds one.
func (c *tenantCommand) prepare() (err error) {
	if err := c.out.validate(); err != nil {
		return err
	}
	if c.api, err = c.client.platform(); err != nil {
		return err
	}
	return c.change.prepare()
}

func (c *tenantCommand) get(ctx context.Context, name string) (*warifuv1.Tenant, error) {
	a, err := call(ctx, &c.client, c.api.GetTenant, &warifuv1.GetTenantRequest{Name: name})
	c.seen = a.GetTenant().GetId()
	return a.GetTenant(), err
}

func (c *tenantCommand) print(t *warifuv1.Tenant) error {
	return printMessage(c.sys, &c.out, t, func(w io.Writer) { describeTenant(w, t) })
}

func describeTenant(w io.Writer, t *warifuv1.Tenant) {
	row(w, "name", plain(t.GetName()))
	row(w, "id", number(t.GetId()))
	row(w, "state", word(t.GetState(), "TENANT_STATE_"))
	row(w, "strict", yesNo(t.GetStrictConsumers()))
	for _, q := range quotasOf(quotasIn(t)) {
		row(w, q.name, quota(*q.value))
	}
	row(w, "note", orDash(plain(t.GetNote())))
	row(w, "version", number(t.GetVersion()))
	row(w, "created", instant(t.GetCreatedAt()))
	row(w, "updated", instant(t.GetUpdatedAt()))
}

func quota(n int64) string {
	if n == 0 {
		return "default"
	}
	return number(n)
}

func newTenantsCreate(sys *system) *cobra.Command {
	var c tenantCommand
	var settings tenantFlags
	cmd := &cobra.Command{Use: "create NAME", Short: "Make a tenant", Args: cobra.ExactArgs(1), ValidArgsFunction: cobra.NoFileCompletions}
	c.bind(sys, cmd)
	settings.bind(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if err := c.prepare(); err != nil {
			return err
		}
		var made *warifuv1.Tenant
		err := c.change.make(cmd.Context(), args[0], false, func(ctx context.Context, dryRun bool) (*warifuv1.Consequence, error) {
			answer, err := call(ctx, &c.client, c.api.CreateTenant, &warifuv1.CreateTenantRequest{
				Name: args[0], StrictConsumers: settings.strict, Quotas: &settings.quotas, Note: settings.note, Change: c.change.change(0, dryRun),
			})
			made = answer.GetTenant()
			return nil, err
		})
		if err != nil {
			return err
		}
		return c.print(made)
	}
	return cmd
}

func newTenantsList(sys *system) *cobra.Command {
	var client clientFlags
	var out output
	var list listFlags
	cmd := &cobra.Command{Use: "list", Short: "List tenants by their numbers, those being deleted included", Args: cobra.NoArgs}
	client.bind(sys, cmd)
	out.bind(cmd)
	list.bind(cmd, 0)
	cmd.RunE = func(*cobra.Command, []string) error {
		api, err := ready(&out, &list, client.platform)
		if err != nil {
			return err
		}
		fetch := func(size uint32, token string) (*warifuv1.ListTenantsResponse, error) {
			return call(cmd.Context(), &client, api.ListTenants, &warifuv1.ListTenantsRequest{PageSize: size, PageToken: token})
		}
		return printList(sys, &list, &out, fetch, (*warifuv1.ListTenantsResponse).GetTenants,
			[]string{"ID", "NAME", "STATE", "STRICT", "VERSION", "UPDATED"}, func(t *warifuv1.Tenant) []string {
				return []string{
					number(t.GetId()), plain(t.GetName()), word(t.GetState(), "TENANT_STATE_"), yesNo(t.GetStrictConsumers()),
					number(t.GetVersion()), instant(t.GetUpdatedAt()),
				}
			})
	}
	return cmd
}

// ready checks the flags of a list and returns the service that it asks.
func ready[S any](out *output, list *listFlags, service func() (S, error)) (S, error) {
	var none S
	if err := out.validate(); err != nil {
		return none, err
	}
	if err := list.validate(); err != nil {
		return none, err
	}
	return service()
}

func newTenantsGet(sys *system) *cobra.Command {
	var c tenantCommand
	cmd := &cobra.Command{Use: "get NAME", Short: "Show a tenant", Args: cobra.ExactArgs(1), ValidArgsFunction: c.client.completeFirst(c.client.completeTenants)}
	c.sys = sys
	c.client.bind(sys, cmd)
	c.out.bind(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) (err error) {
		if err := c.out.validate(); err != nil {
			return err
		}
		if c.api, err = c.client.platform(); err != nil {
			return err
		}
		found, err := c.get(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return c.print(found)
	}
	return cmd
}

func newTenantsUpdate(sys *system) *cobra.Command {
	var c tenantCommand
	var settings tenantFlags
	var newName string
	cmd := &cobra.Command{
		Use: "update NAME", Short: "Change what is given of a tenant; the rest stays", Args: cobra.ExactArgs(1),
		ValidArgsFunction: c.client.completeFirst(c.client.completeTenants),
	}
	c.bind(sys, cmd)
	c.change.bindVersion(cmd)
	settings.bind(cmd)
	cmd.Flags().StringVar(&newName, "name", "", "the tenant's new name")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if newName == "" && !settings.given() {
			return usageError("nothing to change was given; see --help")
		}
		if err := c.prepare(); err != nil {
			return err
		}
		stored, err := c.get(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		version, err := c.change.version(func() (int64, error) { return stored.GetVersion(), nil })
		if err != nil {
			return err
		}
		next := settings.over(stored)
		err = c.change.make(cmd.Context(), args[0], newName != "" || tightens(stored, next), func(ctx context.Context, dryRun bool) (*warifuv1.Consequence, error) {
			answer, err := call(ctx, &c.client, c.api.UpdateTenant, &warifuv1.UpdateTenantRequest{
				Name: args[0], NewName: newName, StrictConsumers: next.GetStrictConsumers(), Quotas: next.GetQuotas(), Note: next.GetNote(),
				Change: c.change.change(version, dryRun),
			})
			next = answer.GetTenant()
			return answer.GetConsequence(), err
		})
		if err != nil {
			return err
		}
		return c.print(next)
	}
	return cmd
}

// tenantVerb is a change of a tenant's state.
type tenantVerb struct {
	use, short, long string
	dangerous        bool
	send             func(context.Context, *tenantCommand, string, *warifuv1.Change) (*warifuv1.Tenant, *warifuv1.Consequence, error)
}

var suspendVerb = tenantVerb{
	use: "suspend NAME", short: "Refuse a tenant's new claims", dangerous: true,
	long: "Refuses new claims within 5 s. What was granted can still be completed, extended and released; 'resume' takes it back.",
	send: func(ctx context.Context, c *tenantCommand, name string, change *warifuv1.Change) (*warifuv1.Tenant, *warifuv1.Consequence, error) {
		a, err := call(ctx, &c.client, c.api.SuspendTenant, &warifuv1.SuspendTenantRequest{Name: name, Change: change})
		return a.GetTenant(), a.GetConsequence(), err
	},
}

var resumeVerb = tenantVerb{
	use: "resume NAME", short: "Take a suspended tenant's claims again",
	send: func(ctx context.Context, c *tenantCommand, name string, change *warifuv1.Change) (*warifuv1.Tenant, *warifuv1.Consequence, error) {
		a, err := call(ctx, &c.client, c.api.ResumeTenant, &warifuv1.ResumeTenantRequest{Name: name, Change: change})
		return a.GetTenant(), nil, err
	},
}

var deleteVerb = tenantVerb{
	use: "delete NAME", short: "End a tenant and purge everything that is stored of it", dangerous: true,
	long: "Ends a tenant: its keys are refused within 5 s, and a job purges its records ('warifu jobs list'). It cannot be taken back.",
	send: func(ctx context.Context, c *tenantCommand, name string, change *warifuv1.Change) (*warifuv1.Tenant, *warifuv1.Consequence, error) {
		if c.seen == 0 { // the same tenant in the dry run and in earnest
			if _, err := c.get(ctx, name); err != nil {
				return nil, nil, err
			}
		}
		a, err := call(ctx, &c.client, c.api.DeleteTenant, &warifuv1.DeleteTenantRequest{Name: name, ExpectedId: c.seen, Change: change})
		return a.GetTenant(), a.GetConsequence(), err
	},
}

func newTenantsVerb(sys *system, verb tenantVerb) *cobra.Command {
	var c tenantCommand
	cmd := &cobra.Command{
		Use: verb.use, Short: verb.short, Long: verb.long, Args: cobra.ExactArgs(1), ValidArgsFunction: c.client.completeFirst(c.client.completeTenants),
	}
	c.bind(sys, cmd)
	c.change.bindVersion(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if err := c.prepare(); err != nil {
			return err
		}
		version, err := c.change.version(func() (int64, error) {
			t, err := c.get(cmd.Context(), args[0])
			return t.GetVersion(), err
		})
		if err != nil {
			return err
		}
		var now *warifuv1.Tenant
		err = c.change.make(cmd.Context(), args[0], verb.dangerous, func(ctx context.Context, dryRun bool) (what *warifuv1.Consequence, err error) {
			now, what, err = verb.send(ctx, &c, args[0], c.change.change(version, dryRun))
			return what, err
		})
		if err != nil {
			return fmt.Errorf("tenant %s: %w", plain(args[0]), err)
		}
		return c.print(now)
	}
	return cmd
}
