package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

func newClaims(sys *system) *cobra.Command {
	cmd := &cobra.Command{Use: "claims", Short: "Look at stored claims, and decide what nobody else can", GroupID: groupClient, Args: cobra.NoArgs, RunE: needsCommand}
	cmd.AddCommand(newClaimsGet(sys), newClaimsList(sys), newClaimsHash(sys))
	for _, verb := range []claimVerb{resolveVerb, retryVerb, forgetVerb} {
		cmd.AddCommand(newClaimsDecide(sys, verb), newClaimsDecideAll(sys, verb))
	}
	return cmd
}

func newClaimsGet(sys *system) *cobra.Command {
	var client clientFlags
	var out output
	cmd := &cobra.Command{
		Use: "get CONSUMER EVENT_ID", Short: "Show what is stored of one event", Args: cobra.ExactArgs(2),
		Long: `Shows what is stored of one event, its result included. With a key of the platform
and --tenant the result is left out. Exit code 5: nothing is stored.`,
		ValidArgsFunction: client.completeFirst(client.completeConsumers),
	}
	client.bind(sys, cmd)
	client.bindTenant(cmd)
	out.bind(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if err := out.validate(); err != nil {
			return err
		}
		rec, err := lookUp(cmd.Context(), &client, args[0], args[1])
		if err != nil {
			return err
		}
		v, err := asJSON(rec)
		if err != nil {
			return err
		}
		return out.write(sys.stdout, v, func(w io.Writer) { describe(w, rec, client.actsFor() == "") })
	}
	return cmd
}

// lookUp asks for one record. Who acts for a tenant asks for a list of one.
func lookUp(ctx context.Context, client *clientFlags, consumer, eventID string) (*warifuv1.ClaimRecord, error) {
	if client.actsFor() != "" {
		api, err := client.admin()
		if err != nil {
			return nil, err
		}
		return findClaim(ctx, client, api, consumer, eventID)
	}
	api, err := client.claims()
	if err != nil {
		return nil, err
	}
	reply, err := call(ctx, client, api.Lookup, &warifuv1.LookupRequest{Consumer: consumer, EventId: eventID})
	if err != nil {
		return nil, err
	}
	if reply.GetRecord().GetState() == warifuv1.State_STATE_ABSENT {
		return nil, nothingStored(consumer, eventID)
	}
	return reply.GetRecord(), nil
}

func nothingStored(consumer, eventID string) error {
	return exit(exitNotFound, fmt.Errorf("nothing is stored of event %s of consumer %s", plain(eventID), plain(consumer)))
}

// describe writes a record; body says whether the reply it is from holds results.
func describe(w io.Writer, r *warifuv1.ClaimRecord, body bool) {
	row(w, "consumer", plain(r.GetConsumer()))
	row(w, "event ID", plain(r.GetEventId()))
	row(w, "state", word(r.GetState(), "STATE_"))
	row(w, "attempt", fmt.Sprintf("%d, %s", r.GetAttempt(), r.GetAttemptId()))
	if r.GetTakeover() != warifuv1.Takeover_TAKEOVER_UNSPECIFIED {
		row(w, "takeover", word(r.GetTakeover(), "TAKEOVER_"))
	}
	row(w, "fence", strconv.FormatInt(r.GetFence(), 10))
	row(w, "digests", orDash(plain(strings.Join(r.GetDigestSchemes(), ", "))))
	row(w, "event time", instant(r.GetEventTime()))
	row(w, "claimed", instant(r.GetClaimedAt()))
	row(w, "granted", instant(r.GetGrantedAt()))
	row(w, "lease until", instant(r.GetLeaseUntil()))
	row(w, "on lease loss", word(r.GetOnLeaseLoss(), "ON_LEASE_LOSS_"))
	row(w, "expires", instant(r.GetExpiresAt()))
	stored := r.GetResult()
	if stored == nil {
		return
	}
	row(w, "completed", instant(stored.GetCompletedAt()))
	row(w, "outcome", word(stored.GetOutcome(), "OUTCOME_"))
	row(w, "content type", orDash(plain(stored.GetContentType())))
	for name, value := range stored.GetMetadata() {
		row(w, "metadata "+plain(name), plain(value))
	}
	if stored.GetResultOmitted() != warifuv1.ResultOmitted_RESULT_OMITTED_UNSPECIFIED {
		row(w, "result", "omitted: "+word(stored.GetResultOmitted(), "RESULT_OMITTED_"))
		return
	}
	if !body {
		row(w, "result", "not shown here")
		return
	}
	row(w, "result", fmt.Sprintf("%d bytes: %s", len(stored.GetResult()), preview(stored.GetResult())))
}

// stateWords are the states that records can have.
const stateWords = "IN_PROGRESS, RELEASED, IN_DOUBT, COMPLETED, FORGOTTEN"

func newClaimsList(sys *system) *cobra.Command {
	var client clientFlags
	var out output
	var list listFlags
	var want warifuv1.ListClaimsRequest
	var states []string
	var age string
	cmd := &cobra.Command{
		Use: "list", Short: "List stored claims, ordered by consumer and event ID", Args: cobra.NoArgs,
	}
	client.bind(sys, cmd)
	client.bindTenant(cmd)
	out.bind(cmd)
	list.bind(cmd, claimsLimit)
	cmd.Flags().StringVar(&want.Consumer, "consumer", "", "only this consumer")
	cmd.Flags().StringVar(&want.EventIdPrefix, "prefix", "", "only event IDs that begin so; needs --consumer")
	cmd.Flags().StringSliceVar(&states, "state", nil, "only these states: "+stateWords)
	cmd.Flags().StringVar(&age, "age", "", "only claims that were first made at least so long ago, such as 36h or 7d")
	completeStates(cmd, "state")
	_ = cmd.RegisterFlagCompletionFunc("consumer", client.completeConsumers)
	cmd.RunE = func(*cobra.Command, []string) (err error) {
		if want.States, err = enums[warifuv1.State]("--state", states, "STATE_", warifuv1.State_value, stateWords); err != nil {
			return err
		}
		if want.AgeMin, err = ageOf(age); err != nil {
			return err
		}
		api, err := ready(&out, &list, client.admin)
		if err != nil {
			return err
		}
		want.Tenant = client.actsFor()
		fetch := func(size uint32, token string) (*warifuv1.ListClaimsResponse, error) {
			want.PageSize, want.PageToken = size, token
			return call(cmd.Context(), &client, api.ListClaims, &want)
		}
		return printList(sys, &list, &out, fetch, (*warifuv1.ListClaimsResponse).GetClaims,
			[]string{"CONSUMER", "EVENT ID", "STATE", "ATTEMPT", "FENCE", "CLAIMED", "LEASE UNTIL", "EXPIRES"}, func(r *warifuv1.ClaimRecord) []string {
				return []string{
					plain(r.GetConsumer()), plain(r.GetEventId()), word(r.GetState(), "STATE_"), strconv.FormatUint(uint64(r.GetAttempt()), 10),
					number(r.GetFence()), instant(r.GetClaimedAt()), instant(r.GetLeaseUntil()), instant(r.GetExpiresAt()),
				}
			})
	}
	return cmd
}

// claimsLimit is how many claims are shown unless more are asked for.
const claimsLimit = 50

// completeStates completes a flag that takes states of records.
func completeStates(cmd *cobra.Command, flag string) {
	// The only error is a flag that does not exist, and the caller has made it.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(strings.Split(stateWords, ", "), cobra.ShellCompDirectiveNoFileComp))
}

// ageOf reads --age; nil where nothing was given.
func ageOf(text string) (*durationpb.Duration, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // documented: nothing was given
	}
	d, err := parseDuration(text)
	if err != nil || d < 0 {
		return nil, usageError("--age %q: it is a length of time such as 36h or 7d", text)
	}
	return durationpb.New(d), nil
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// previewBytes is how much of a result a table shows.
const previewBytes = 200

func preview(b []byte) string {
	if len(b) <= previewBytes {
		return strconv.Quote(string(b))
	}
	return strconv.Quote(string(b[:previewBytes])) + "..."
}
