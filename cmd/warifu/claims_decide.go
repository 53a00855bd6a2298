package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/api/gen/warifu/v1/warifuv1connect"
)

// claimVerb is what an operator decides about claims.
type claimVerb struct {
	name, short, long string
	action            warifuv1.BulkAction
}

var resolveVerb = claimVerb{
	name: "resolve", action: warifuv1.BulkAction_BULK_ACTION_COMPLETE,
	short: "Say that the effect happened: duplicates are answered with the result given here",
	long:  "Completes a claim whose outcome nobody knows: the effect happened, and duplicates are answered with the result given here.",
}

var retryVerb = claimVerb{
	name: "retry", action: warifuv1.BulkAction_BULK_ACTION_RETRY,
	short: "Say that it did not happen, or may happen again: the next claim is granted",
	long:  "Gives a claim back whose outcome nobody knows: the next claim of the event is granted. If the effect has happened after all, it happens twice.",
}

var forgetVerb = claimVerb{
	name: "forget", action: warifuv1.BulkAction_BULK_ACTION_FORGET,
	short: "Drop content and result: the next claim is granted",
	long:  "Drops content and result of a claim and keeps its fence: the next claim of the event is granted. If the effect has happened, it happens twice.",
}

// completionFlags are the result that resolve stores.
type completionFlags struct {
	outcome, text, file, contentType string
	metadata                         map[string]string
	used                             bool
}

func (f *completionFlags) bind(cmd *cobra.Command, verb claimVerb) {
	if f.used = verb.action == warifuv1.BulkAction_BULK_ACTION_COMPLETE; !f.used {
		return
	}
	cmd.Flags().StringVar(&f.outcome, "outcome", "SUCCEEDED", "SUCCEEDED or REJECTED")
	cmd.Flags().StringVar(&f.text, "result", "", "the result, as text")
	cmd.Flags().StringVar(&f.file, "result-file", "", "file with the result")
	cmd.Flags().StringVar(&f.contentType, "content-type", "", "what the result is")
	cmd.Flags().StringToStringVar(&f.metadata, "metadata", nil, "NAME=VALUE beside the result; repeatable")
	cmd.MarkFlagsMutuallyExclusive("result", "result-file")
	_ = cmd.RegisterFlagCompletionFunc("outcome", cobra.FixedCompletions([]string{"SUCCEEDED", "REJECTED"}, cobra.ShellCompDirectiveNoFileComp))
}

// message is nil for verbs that store no result.
func (f *completionFlags) message() (*warifuv1.Completion, error) {
	if !f.used {
		return nil, nil //nolint:nilnil // documented: no result
	}
	outcomes, err := enums[warifuv1.Outcome]("--outcome", []string{f.outcome}, "OUTCOME_", warifuv1.Outcome_value, "SUCCEEDED, REJECTED")
	if err != nil {
		return nil, err
	}
	c := &warifuv1.Completion{Outcome: outcomes[0], Result: []byte(f.text), ContentType: f.contentType, Metadata: f.metadata}
	if f.file != "" {
		if c.Result, err = os.ReadFile(f.file); err != nil {
			return nil, exit(exitUsage, fmt.Errorf("--result-file: %w", err))
		}
	}
	return c, nil
}

// decision is a command that decides about claims.
type decision struct {
	sys    *system
	verb   claimVerb
	client clientFlags
	change changeFlags
	out    output
	result completionFlags
	fence  int64
	api    warifuv1connect.ClaimAdminServiceClient
}

func (d *decision) bind(sys *system, verb claimVerb, cmd *cobra.Command) {
	d.sys, d.verb = sys, verb
	d.client.bind(sys, cmd)
	d.client.bindTenant(cmd)
	d.out.bind(cmd)
	d.change.bindReason(sys, cmd)
	d.result.bind(cmd, verb)
}

func (d *decision) prepare() (result *warifuv1.Completion, err error) {
	if err := d.out.validate(); err != nil {
		return nil, err
	}
	if result, err = d.result.message(); err != nil {
		return nil, err
	}
	if d.api, err = d.client.admin(); err != nil {
		return nil, err
	}
	return result, d.change.prepare()
}

func newClaimsDecide(sys *system, verb claimVerb) *cobra.Command {
	var d decision
	cmd := &cobra.Command{
		Use: verb.name + " CONSUMER EVENT_ID", Short: verb.short, Args: cobra.ExactArgs(2),
		Long: verb.long + `

The claim is looked at first, shown, and has to be confirmed; a claim that moves on
meanwhile is left alone (exit code 7).`,
		ValidArgsFunction: d.client.completeFirst(d.client.completeConsumers),
	}
	d.bind(sys, verb, cmd)
	cmd.Flags().Int64Var(&d.fence, "expected-fence", 0, "decide about this grant and no other; default: the one that is there now")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		result, err := d.prepare()
		if err != nil {
			return err
		}
		return d.one(cmd.Context(), args[0], args[1], result)
	}
	return cmd
}

func (d *decision) one(ctx context.Context, consumer, eventID string, result *warifuv1.Completion) error {
	rec, err := findClaim(ctx, &d.client, d.api, consumer, eventID)
	if err != nil {
		return err
	}
	if d.fence != 0 && d.fence != rec.GetFence() {
		return exit(exitConflict, fmt.Errorf("the claim has fence %d, not %d: it moved on; nothing was changed, look again", rec.GetFence(), d.fence))
	}
	row(d.sys.stderr, fmt.Sprintf("%s of %s is %s: attempt %d, fence %d, granted %s", plain(eventID), plain(consumer),
		word(rec.GetState(), "STATE_"), rec.GetAttempt(), rec.GetFence(), instant(rec.GetGrantedAt())))
	if rec.GetState() == warifuv1.State_STATE_IN_PROGRESS {
		row(d.sys.stderr, fmt.Sprintf("- an attempt has it until %s: what it does may still happen, and it cannot complete", instant(rec.GetLeaseUntil())))
	}
	if d.change.dryRun {
		row(d.sys.stderr, "dry run: nothing was changed")
	} else {
		if err := d.change.confirm(eventID); err != nil {
			return err
		}
		if rec, err = d.send(ctx, rec, result); err != nil {
			return err
		}
	}
	return printMessage(d.sys, &d.out, rec, func(w io.Writer) { describe(w, rec, false) })
}

// send decides about a claim as it was looked at. It may be sent again: what it
// did already it does not do twice.
func (d *decision) send(ctx context.Context, rec *warifuv1.ClaimRecord, result *warifuv1.Completion) (*warifuv1.ClaimRecord, error) {
	tenant, consumer, eventID, reason := d.client.actsFor(), rec.GetConsumer(), rec.GetEventId(), d.change.reason
	if d.verb.action == warifuv1.BulkAction_BULK_ACTION_FORGET {
		a, err := call(ctx, &d.client, d.api.ForgetClaim, &warifuv1.ForgetClaimRequest{
			Tenant: tenant, Consumer: consumer, EventId: eventID, ExpectedFence: rec.GetFence(), ExpectedState: rec.GetState(), Reason: reason,
		})
		return a.GetRecord(), err
	}
	resolution := warifuv1.Resolution_RESOLUTION_RETRY
	if result != nil {
		resolution = warifuv1.Resolution_RESOLUTION_COMPLETE
	}
	a, err := call(ctx, &d.client, d.api.ResolveClaim, &warifuv1.ResolveClaimRequest{
		Tenant: tenant, Consumer: consumer, EventId: eventID, Resolution: resolution, Completion: result,
		ExpectedFence: rec.GetFence(), ExpectedState: rec.GetState(), Reason: reason,
	})
	return a.GetRecord(), err
}

// findPagesMax bounds how many pages of expired records are skipped on the way
// to one that is there.
const findPagesMax = 100

// findClaim finds one record through the list: with a key of the platform there
// is no other way. The list is ordered, so that an event ID comes before all that
// begin with it.
func findClaim(
	ctx context.Context, client *clientFlags, api warifuv1connect.ClaimAdminServiceClient, consumer, eventID string,
) (*warifuv1.ClaimRecord, error) {
	want := &warifuv1.ListClaimsRequest{Tenant: client.actsFor(), Consumer: consumer, EventIdPrefix: eventID, PageSize: 1}
	for range findPagesMax {
		page, err := call(ctx, client, api.ListClaims, want)
		if err != nil {
			return nil, err
		}
		for _, rec := range page.GetClaims() {
			if rec.GetEventId() == eventID {
				return rec, nil
			}
		}
		want.PageToken = page.GetNextPageToken()
		if len(page.GetClaims()) > 0 || want.PageToken == "" {
			break
		}
	}
	return nil, nothingStored(consumer, eventID)
}
