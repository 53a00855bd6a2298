package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

func newClaims(sys *system) *cobra.Command {
	cmd := &cobra.Command{Use: "claims", Short: "Look at stored claims", GroupID: groupClient, Args: cobra.NoArgs, RunE: needsCommand}
	cmd.AddCommand(newClaimsGet(sys), newClaimsList(sys))
	return cmd
}

func newClaimsGet(sys *system) *cobra.Command {
	var client clientFlags
	var out output
	cmd := &cobra.Command{
		Use: "get CONSUMER EVENT_ID", Short: "Show what is stored of one event", Args: cobra.ExactArgs(2),
		Long: "Shows what is stored of one event, its result included. Exit code 5: nothing is.",
	}
	client.bind(sys, cmd)
	out.bind(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if err := out.validate(); err != nil {
			return err
		}
		api, err := client.claims()
		if err != nil {
			return err
		}
		reply, err := api.Lookup(cmd.Context(), &warifuv1.LookupRequest{Consumer: args[0], EventId: args[1]})
		if err != nil {
			return client.failedCall(err)
		}
		rec := reply.GetRecord()
		if rec.GetState() == warifuv1.State_STATE_ABSENT {
			return exit(exitNotFound, fmt.Errorf("nothing is stored of event %s of consumer %s", plain(args[1]), plain(args[0])))
		}
		v, err := asJSON(rec)
		if err != nil {
			return err
		}
		return out.write(sys.stdout, v, func(w io.Writer) { describe(w, rec) })
	}
	return cmd
}

func describe(w io.Writer, r *warifuv1.ClaimRecord) {
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
	row(w, "result", fmt.Sprintf("%d bytes: %s", len(stored.GetResult()), preview(stored.GetResult())))
}

func newClaimsList(sys *system) *cobra.Command {
	var client clientFlags
	var out output
	var want warifuv1.ListClaimsRequest
	var states []string
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List stored claims, ordered by consumer and event ID", Args: cobra.NoArgs,
	}
	client.bind(sys, cmd)
	out.bind(cmd)
	cmd.Flags().StringVar(&want.Consumer, "consumer", "", "only this consumer")
	cmd.Flags().StringVar(&want.EventIdPrefix, "prefix", "", "only event IDs that begin so; needs --consumer")
	cmd.Flags().StringSliceVar(&states, "state", nil, "only these states: IN_PROGRESS, RELEASED, IN_DOUBT, COMPLETED, FORGOTTEN")
	cmd.Flags().IntVar(&limit, "limit", 50, "how many at most; 0: all")
	cmd.RunE = func(*cobra.Command, []string) error {
		if err := out.validate(); err != nil {
			return err
		}
		if limit < 0 {
			return usageError("--limit %d: it is 0 or more", limit)
		}
		for _, name := range states {
			value, ok := warifuv1.State_value["STATE_"+strings.ToUpper(name)]
			if !ok || value == 0 {
				return usageError("--state %q: it is one of IN_PROGRESS, RELEASED, IN_DOUBT, COMPLETED, FORGOTTEN", name)
			}
			want.States = append(want.States, warifuv1.State(value))
		}
		return listClaims(cmd, sys, &client, &out, &want, limit)
	}
	return cmd
}

// listPage is how many claims one request asks for at most.
const listPage = 500

func listClaims(cmd *cobra.Command, sys *system, client *clientFlags, out *output, want *warifuv1.ListClaimsRequest, limit int) error {
	api, err := client.admin()
	if err != nil {
		return err
	}
	var found []*warifuv1.ClaimRecord
	for limit == 0 || len(found) < limit {
		want.PageSize = listPage
		if limit > 0 {
			want.PageSize = uint32(min(listPage, limit-len(found))) //nolint:gosec // 1-500
		}
		page, err := api.ListClaims(cmd.Context(), want)
		if err != nil {
			return client.failedCall(err)
		}
		found = append(found, page.GetClaims()...)
		if want.PageToken = page.GetNextPageToken(); want.PageToken == "" {
			break
		}
	}
	if want.PageToken != "" && isTerminal(sys.stderr) {
		row(sys.stderr, fmt.Sprintf("the first %d are shown; --limit 0 shows all", limit))
	}
	values := make([]json.RawMessage, len(found))
	for i, r := range found {
		if values[i], err = asJSON(r); err != nil {
			return err
		}
	}
	return out.write(sys.stdout, values, func(w io.Writer) {
		row(w, "CONSUMER", "EVENT ID", "STATE", "ATTEMPT", "FENCE", "CLAIMED", "LEASE UNTIL", "EXPIRES")
		for _, r := range found {
			row(w, plain(r.GetConsumer()), plain(r.GetEventId()), word(r.GetState(), "STATE_"),
				strconv.FormatUint(uint64(r.GetAttempt()), 10), strconv.FormatInt(r.GetFence(), 10),
				instant(r.GetClaimedAt()), instant(r.GetLeaseUntil()), instant(r.GetExpiresAt()))
		}
	})
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
