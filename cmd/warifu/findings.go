package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

func newFindings(sys *system) *cobra.Command {
	cmd := &cobra.Command{
		Use: "findings", Short: "Look after what the system wants people to look at", GroupID: groupAdmin, Args: cobra.NoArgs, RunE: needsCommand,
	}
	cmd.AddCommand(newFindingsList(sys), newFindingsAssign(sys), newFindingsResolve(sys))
	return cmd
}

const findingStateWords = "OPEN, ASSIGNED, RESOLVED"

func newFindingsList(sys *system) *cobra.Command {
	var c teamCommand
	var list listFlags
	var states []string
	cmd := &cobra.Command{Use: "list", Short: "List findings, newest first", Args: cobra.NoArgs}
	c.bindRead(sys, cmd)
	list.bind(cmd, 0)
	cmd.Flags().StringSliceVar(&states, "state", nil, "only these states: "+findingStateWords)
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions([]string{"OPEN", "ASSIGNED", "RESOLVED"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(*cobra.Command, []string) (err error) {
		wanted, err := enums[warifuv1.FindingState]("--state", states, "FINDING_STATE_", warifuv1.FindingState_value, findingStateWords)
		if err != nil {
			return err
		}
		if c.api, err = ready(&c.out, &list, c.client.team); err != nil {
			return err
		}
		return printList(sys, &list, &c.out, c.findingPages(cmd.Context(), wanted), (*warifuv1.ListFindingsResponse).GetFindings,
			[]string{"ID", "KIND", "STATE", "CONSUMER", "EVENT ID", "ASSIGNEE", "CREATED"}, func(f *warifuv1.Finding) []string {
				return []string{
					plain(f.GetId()), plain(f.GetKind()), word(f.GetState(), "FINDING_STATE_"), orDash(plain(f.GetConsumer())),
					orDash(plain(f.GetEventId())), orDash(plain(f.GetAssignee())), instant(f.GetCreatedAt()),
				}
			})
	}
	return cmd
}

func (c *teamCommand) findingPages(ctx context.Context, states []warifuv1.FindingState) func(uint32, string) (*warifuv1.ListFindingsResponse, error) {
	return func(size uint32, token string) (*warifuv1.ListFindingsResponse, error) {
		return call(ctx, &c.client, c.api.ListFindings, &warifuv1.ListFindingsRequest{
			Tenant: c.client.actsFor(), States: states, PageSize: size, PageToken: token,
		})
	}
}

// findingWith returns a finding as it is now.
func (c *teamCommand) findingWith(ctx context.Context, id string) (*warifuv1.Finding, error) {
	found, _, err := collect(0, c.findingPages(ctx, nil), (*warifuv1.ListFindingsResponse).GetFindings)
	if err != nil {
		return nil, err
	}
	for _, f := range found {
		if f.GetId() == id {
			return f, nil
		}
	}
	return nil, exit(exitNotFound, fmt.Errorf("no finding %s; 'warifu findings list' shows all", plain(id)))
}

func newFindingsAssign(sys *system) *cobra.Command {
	var c teamCommand
	var to string
	cmd := &cobra.Command{Use: "assign ID", Short: "Say who looks at a finding", Args: cobra.ExactArgs(1), ValidArgsFunction: cobra.NoFileCompletions}
	c.bind(sys, cmd)
	c.change.bindVersion(cmd)
	cmd.Flags().StringVar(&to, "to", "", "who (required)")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if to == "" {
			return usageError("--to is missing: who looks at it")
		}
		return c.updateFinding(cmd.Context(), args[0], warifuv1.FindingState_FINDING_STATE_ASSIGNED, &to)
	}
	return cmd
}

func newFindingsResolve(sys *system) *cobra.Command {
	var c teamCommand
	cmd := &cobra.Command{Use: "resolve ID", Short: "Say that a finding is dealt with", Args: cobra.ExactArgs(1), ValidArgsFunction: cobra.NoFileCompletions}
	c.bind(sys, cmd)
	c.change.bindVersion(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		return c.updateFinding(cmd.Context(), args[0], warifuv1.FindingState_FINDING_STATE_RESOLVED, nil)
	}
	return cmd
}

// updateFinding puts a finding into a state; a nil assignee stays who it is.
func (c *teamCommand) updateFinding(ctx context.Context, id string, state warifuv1.FindingState, assignee *string) error {
	if err := c.prepare(); err != nil {
		return err
	}
	now, err := c.findingWith(ctx, id)
	if err != nil {
		return err
	}
	if assignee == nil {
		assignee = &now.Assignee
	}
	version, err := c.change.version(func() (int64, error) { return now.GetVersion(), nil })
	if err != nil {
		return err
	}
	err = c.change.make(ctx, id, false, func(ctx context.Context, dryRun bool) (*warifuv1.Consequence, error) {
		answer, err := call(ctx, &c.client, c.api.UpdateFinding, &warifuv1.UpdateFindingRequest{
			Tenant: c.client.actsFor(), Id: id, State: state, Assignee: *assignee, Change: c.change.change(version, dryRun),
		})
		now = answer.GetFinding()
		return nil, err
	})
	if err != nil {
		return err
	}
	return printMessage(c.sys, &c.out, now, func(w io.Writer) {
		row(w, "id", plain(now.GetId()))
		row(w, "kind", plain(now.GetKind()))
		row(w, "state", word(now.GetState(), "FINDING_STATE_"))
		row(w, "consumer", orDash(plain(now.GetConsumer())))
		row(w, "event ID", orDash(plain(now.GetEventId())))
		row(w, "assignee", orDash(plain(now.GetAssignee())))
		row(w, "details", orDash(plain(now.GetDetails())))
		row(w, "version", number(now.GetVersion()))
	})
}
