package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"
)

// run is the process without the process: it returns the exit code.
func run(ctx context.Context, sys system) int {
	begun := false // whether a command got past its flags and arguments
	root := newRoot(&sys, &begun)
	root.SetArgs(sys.args)
	root.SetIn(sys.stdin)
	root.SetOut(sys.stdout)
	root.SetErr(sys.stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && !begun {
		if _, coded := errors.AsType[*exitError](err); !coded {
			err = exit(exitUsage, err)
		}
	}
	return report(sys.stderr, cmd.CommandPath(), err)
}

func newRoot(sys *system, begun *bool) *cobra.Command {
	root := &cobra.Command{
		Use:   "warifu",
		Short: "Act on every event once: idempotency keys, leases and replayed results",
		Long: `Warifu decides who may act on an event, once. A consumer claims an event ID,
does the work, and completes it; every redelivery is answered with the stored
result instead of running again.

Start with 'warifu dev'. It prints an API key and a first request.

Client commands read WARIFU_URL, and WARIFU_API_KEY or WARIFU_API_KEY_FILE; 'warifu
context' keeps both under a name.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := cmd.ValidateFlagGroups(); err != nil { // cobra does so later
				return err
			}
			*begun = true
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.CompletionOptions.HiddenDefaultCmd = false
	root.AddGroup(
		&cobra.Group{ID: groupServer, Title: "Server:"},
		&cobra.Group{ID: groupClient, Title: "Client:"},
		&cobra.Group{ID: groupAdmin, Title: "Administration:"},
		&cobra.Group{ID: groupTools, Title: "Tools:"},
	)
	root.AddCommand(
		newDev(sys), newServe(sys), newMigrate(sys),
		newClaims(sys), newOnce(sys), newDoctor(sys),
		newTenants(sys), newConsumers(sys), newKeys(sys), newApply(sys), newAudit(sys), newUsage(sys), newFindings(sys),
		newJobs(sys), newResults(sys), newDataKeys(sys),
		newContext(sys), newConformance(sys), newConfig(sys), newVersion(sys),
		&cobra.Command{Use: "exit-codes", Short: "What the exit codes mean", Long: exitCodesText},
	)
	root.SetCompletionCommandGroupID(groupTools)
	root.SetHelpCommandGroupID(groupTools)
	return root
}

// The groups of the command list.
const (
	groupServer = "server"
	groupClient = "client"
	groupAdmin  = "admin"
	groupTools  = "tools"
)
