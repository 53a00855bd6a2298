package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

func newResults(sys *system) *cobra.Command {
	cmd := &cobra.Command{Use: "results", Short: "Destroy stored results", GroupID: groupAdmin, Args: cobra.NoArgs, RunE: needsCommand}
	cmd.AddCommand(newResultsShred(sys))
	return cmd
}

func newDataKeys(sys *system) *cobra.Command {
	cmd := &cobra.Command{
		Use: "data-keys", Short: "Change the keys that results are sealed with", GroupID: groupAdmin, Args: cobra.NoArgs, RunE: needsCommand,
	}
	cmd.AddCommand(newDataKeysRotate(sys), newDataKeysRewrap(sys))
	return cmd
}

func newResultsShred(sys *system) *cobra.Command {
	var c teamCommand
	var consumer string
	var all bool
	cmd := &cobra.Command{
		Use: "shred", Short: "Destroy the keys of stored results, of a consumer or of a whole tenant", Args: cobra.NoArgs,
		Long: `Destroys the keys of stored results: nobody reads them again. Duplicates are
answered without their result, and never granted again. It cannot be taken back.`,
	}
	c.bind(sys, cmd)
	c.change.bindVersion(cmd)
	cmd.Flags().StringVar(&consumer, "consumer", "", "the results of this consumer")
	cmd.Flags().BoolVar(&all, "all", false, "the results of all of the tenant's consumers")
	cmd.MarkFlagsMutuallyExclusive("consumer", "all")
	_ = cmd.RegisterFlagCompletionFunc("consumer", c.client.completeConsumers)
	cmd.RunE = func(*cobra.Command, []string) error {
		if consumer == "" && !all {
			return usageError("whose results? give --consumer, or --all for the whole tenant")
		}
		if all && c.client.actsFor() == "" {
			return usageError("--tenant is missing: --all asks for its name, so that it is not the wrong one")
		}
		if err := c.prepare(); err != nil {
			return err
		}
		version, err := c.change.version(func() (int64, error) { return c.versionOf(cmd.Context(), consumer) })
		if err != nil {
			return err
		}
		name := consumer
		if all {
			name = c.client.actsFor()
		}
		var last *warifuv1.ShredResultsResponse
		err = c.change.make(cmd.Context(), name, true, func(ctx context.Context, dryRun bool) (*warifuv1.Consequence, error) {
			last, err = call(ctx, &c.client, c.api.ShredResults, &warifuv1.ShredResultsRequest{
				Tenant: c.client.actsFor(), Consumer: consumer, Change: c.change.change(version, dryRun),
			})
			return last.GetConsequence(), err
		})
		if err != nil {
			return err
		}
		return printMessage(sys, &c.out, last, func(w io.Writer) { row(w, c.change.done("shredded", "the results of "+plain(name))) })
	}
	return cmd
}

// versionOf is the version of a consumer, or of the tenant where it is empty.
func (c *teamCommand) versionOf(ctx context.Context, consumer string) (int64, error) {
	if consumer != "" {
		found, err := c.consumer(ctx, consumer)
		return found.GetVersion(), err
	}
	api, err := c.client.platform()
	if err != nil {
		return 0, err
	}
	found, err := call(ctx, &c.client, api.GetTenant, &warifuv1.GetTenantRequest{Name: c.client.actsFor()})
	if exitCodeOf(err) == exitDenied && err != nil {
		return 0, exit(exitDenied, fmt.Errorf("only a key of the platform sees the version of a tenant; use one, or give --expected-version: %w", err))
	}
	return found.GetTenant().GetVersion(), err
}

func newDataKeysRotate(sys *system) *cobra.Command {
	var c teamCommand
	var consumer string
	cmd := &cobra.Command{Use: "rotate", Short: "Have new results sealed with a new key; old ones stay readable", Args: cobra.NoArgs}
	c.bind(sys, cmd)
	cmd.Flags().StringVar(&consumer, "consumer", "", "the key of this consumer; default: the tenant's, for consumers that have none")
	_ = cmd.RegisterFlagCompletionFunc("consumer", c.client.completeConsumers)
	cmd.RunE = func(*cobra.Command, []string) error {
		if err := c.prepare(); err != nil {
			return err
		}
		var made *warifuv1.RotateDataKeyResponse
		err := c.change.make(cmd.Context(), consumer, false, func(ctx context.Context, dryRun bool) (_ *warifuv1.Consequence, err error) {
			made, err = call(ctx, &c.client, c.api.RotateDataKey, &warifuv1.RotateDataKeyRequest{
				Tenant: c.client.actsFor(), Consumer: consumer, Change: c.change.change(0, dryRun),
			})
			return nil, err
		})
		if err != nil {
			return err
		}
		return printMessage(sys, &c.out, made, func(w io.Writer) {
			row(w, c.change.done("made", fmt.Sprintf("data key %d", made.GetDataKeyId())))
		})
	}
	return cmd
}
