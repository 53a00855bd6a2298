package main

import (
	"io"

	"github.com/spf13/cobra"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

func newUsage(sys *system) *cobra.Command {
	var c teamCommand
	cmd := &cobra.Command{
		Use: "usage", Short: "Show what a tenant uses of its quotas", GroupID: groupAdmin, Args: cobra.NoArgs,
		Long: `Shows what a tenant uses of its quotas. Numbers of records are those of the last
count; rates are those of the last minute on the server that answers.`,
	}
	c.bindRead(sys, cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		if err := c.find(); err != nil {
			return err
		}
		now, err := call(cmd.Context(), &c.client, c.api.GetUsage, &warifuv1.GetUsageRequest{Tenant: c.client.actsFor()})
		if err != nil {
			return err
		}
		return printMessage(sys, &c.out, now, func(w io.Writer) {
			row(w, "WHAT", "USED", "LIMIT")
			for _, u := range now.GetUsage() {
				limit := "none"
				if u.GetLimit() > 0 {
					limit = number(u.GetLimit())
				}
				row(w, plain(u.GetWhat()), number(u.GetUsed()), limit)
			}
			row(w, "")
			row(w, "CONSUMER", "KEYS", "LIVE", "IN DOUBT", "BYTES")
			for _, u := range now.GetConsumers() {
				name := plain(u.GetConsumer())
				if name == "" {
					name = "(others)"
				}
				row(w, name, number(u.GetRetainedKeys()), number(u.GetLiveLeases()), number(u.GetInDoubt()), number(u.GetStoredBytes()))
			}
			row(w, "")
			row(w, "counted at "+instant(now.GetCountedAt()))
		})
	}
	return cmd
}
