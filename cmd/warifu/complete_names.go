package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

const (
	// completionTime is how long a shell waits for names.
	completionTime = time.Second
	// completionMax is how many names are worth showing.
	completionMax = 100
)

// names asks the server for names within completionTime. A shell that gets none
// completes nothing: completion reports no errors.
func (f *clientFlags) names(cmd *cobra.Command, ask func(context.Context) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completionTime)
	defer cancel()
	found, err := ask(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

// completeFirst completes the first argument and no other.
func (f *clientFlags) completeFirst(first cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return first(cmd, args, begun)
	}
}

func (f *clientFlags) completeTenants(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return f.names(cmd, func(ctx context.Context) (found []string, err error) {
		api, err := f.platform()
		if err != nil {
			return nil, err
		}
		answer, err := api.ListTenants(ctx, &warifuv1.ListTenantsRequest{PageSize: completionMax})
		for _, t := range answer.GetTenants() {
			found = append(found, t.GetName())
		}
		return found, err
	})
}

func (f *clientFlags) completeConsumers(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
	return f.names(cmd, func(ctx context.Context) (found []string, err error) {
		api, err := f.team()
		if err != nil {
			return nil, err
		}
		answer, err := api.ListConsumers(ctx, &warifuv1.ListConsumersRequest{Tenant: f.actsFor(), Prefix: begun, PageSize: completionMax})
		for _, c := range answer.GetConsumers() {
			found = append(found, c.GetName())
		}
		return found, err
	})
}

func (f *clientFlags) completeKeys(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return f.names(cmd, func(ctx context.Context) (found []string, err error) {
		api, err := f.team()
		if err != nil {
			return nil, err
		}
		answer, err := api.ListKeys(ctx, &warifuv1.ListKeysRequest{Tenant: f.actsFor(), PageSize: completionMax})
		for _, k := range answer.GetKeys() {
			if k.GetRevokedAt() == nil {
				found = append(found, k.GetId()+"\t"+plain(k.GetNote()))
			}
		}
		return found, err
	})
}
