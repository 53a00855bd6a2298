package main

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

// bulkCounts is what became of many claims.
type bulkCounts struct {
	Matched uint64 `json:"matched"`
	Changed uint64 `json:"changed"`
	MovedOn uint64 `json:"movedOn"`
	DryRun  bool   `json:"dryRun"`
}

func newClaimsDecideAll(sys *system, verb claimVerb) *cobra.Command {
	var d decision
	want := &warifuv1.ResolveClaimsRequest{Action: verb.action}
	var states []string
	var age string
	cmd := &cobra.Command{
		Use: verb.name + "-all CONSUMER", Short: "The same for all claims of a consumer that match: " + verb.name, Args: cobra.ExactArgs(1),
		Long: verb.long + `

Does so with all claims of a consumer that match the filter. They are counted
first, and the number has to be confirmed. Claims that move on meanwhile are left
alone and counted (exit code 7). When it is broken off, run it again: it goes on
with what still matches.`,
		ValidArgsFunction: d.client.completeFirst(d.client.completeConsumers),
	}
	d.bind(sys, verb, cmd)
	cmd.Flags().StringSliceVar(&states, "states", nil, "only these states (required): "+stateWords)
	cmd.Flags().StringVar(&want.EventIdPrefix, "prefix", "", "only event IDs that begin so")
	cmd.Flags().StringVar(&age, "age", "", "only claims that were first made at least so long ago, such as 36h or 7d")
	completeStates(cmd, "states")
	cmd.RunE = func(_ *cobra.Command, args []string) (err error) {
		if len(states) == 0 {
			return usageError("--states is missing: which claims? %s", stateWords)
		}
		if want.States, err = enums[warifuv1.State]("--states", states, "STATE_", warifuv1.State_value, stateWords); err != nil {
			return err
		}
		if want.AgeMin, err = ageOf(age); err != nil {
			return err
		}
		if want.Completion, err = d.prepare(); err != nil {
			return err
		}
		want.Tenant, want.Consumer, want.Reason = d.client.actsFor(), args[0], d.change.reason
		return d.all(cmd.Context(), want)
	}
	return cmd
}

// all counts, asks, and then decides page by page.
func (d *decision) all(ctx context.Context, want *warifuv1.ResolveClaimsRequest) error {
	counted, err := d.pages(ctx, want, true)
	if err != nil {
		return err
	}
	row(d.sys.stderr, fmt.Sprintf("%d claims of %s match", counted.Matched, plain(want.GetConsumer())))
	if d.change.dryRun || counted.Matched == 0 {
		counted.DryRun = d.change.dryRun
		return d.printCounts(counted)
	}
	if err := d.change.confirm(want.GetConsumer()); err != nil {
		return err
	}
	done, err := d.pages(ctx, want, false)
	if err != nil {
		return exit(exitCodeOf(err), fmt.Errorf("after %d claims: %w\nrun it again: it goes on with what still matches", done.Changed, err))
	}
	if err := d.printCounts(done); err != nil {
		return err
	}
	if done.MovedOn > 0 {
		return exit(exitConflict, fmt.Errorf("%d claims moved on meanwhile and were left alone; look at them again", done.MovedOn))
	}
	return nil
}

// pages sends one request for each page. What was counted is returned with an
// error, too.
func (d *decision) pages(ctx context.Context, want *warifuv1.ResolveClaimsRequest, dryRun bool) (bulkCounts, error) {
	var sum bulkCounts
	request := proto.CloneOf(want)
	request.DryRun = dryRun
	for {
		a, err := callOnce(ctx, &d.client, d.api.ResolveClaims, request)
		if err != nil {
			return sum, err
		}
		sum.Matched += uint64(a.GetMatched())
		sum.Changed += uint64(a.GetChanged())
		sum.MovedOn += uint64(a.GetMovedOn())
		next := a.GetNextPageToken()
		if next == "" {
			return sum, nil
		}
		if next == request.GetPageToken() {
			return sum, errSamePage
		}
		request.PageToken = next
	}
}

func (d *decision) printCounts(c bulkCounts) error {
	return d.out.write(d.sys.stdout, c, func(w io.Writer) {
		row(w, "matched", strconv.FormatUint(c.Matched, 10))
		row(w, "changed", strconv.FormatUint(c.Changed, 10))
		row(w, "moved on", strconv.FormatUint(c.MovedOn, 10))
	})
}
