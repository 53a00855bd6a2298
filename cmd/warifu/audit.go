package main

import (
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

func newAudit(sys *system) *cobra.Command {
	cmd := &cobra.Command{Use: "audit", Short: "Read who did what, when and why", GroupID: groupAdmin, Args: cobra.NoArgs, RunE: needsCommand}
	cmd.AddCommand(newAuditList(sys))
	return cmd
}

// auditLimit is how many entries are shown unless more are asked for: the log is
// kept for good.
const auditLimit = 100

func newAuditList(sys *system) *cobra.Command {
	var c teamCommand
	var list listFlags
	var from, until string
	cmd := &cobra.Command{
		Use: "list", Short: "List the audit log, newest first", Args: cobra.NoArgs,
		Long: `Lists the audit log, newest first. With a key of the platform and no tenant it is
the log of everything. JSON and YAML show what was before and after, too.`,
	}
	c.bindRead(sys, cmd)
	list.bind(cmd, auditLimit)
	cmd.Flags().StringVar(&from, "from", "", "not before this instant, or not longer ago than this, such as 7d")
	cmd.Flags().StringVar(&until, "until", "", "before this instant, or longer ago than this")
	cmd.RunE = func(*cobra.Command, []string) error {
		want := &warifuv1.ListAuditRequest{Tenant: c.client.actsFor()}
		var err error
		if want.From, err = instantOrAgo(sys.now(), "--from", from); err != nil {
			return err
		}
		if want.Until, err = instantOrAgo(sys.now(), "--until", until); err != nil {
			return err
		}
		api, err := ready(&c.out, &list, c.client.team)
		if err != nil {
			return err
		}
		fetch := func(size uint32, token string) (*warifuv1.ListAuditResponse, error) {
			want.PageSize, want.PageToken = size, token
			return call(cmd.Context(), &c.client, api.ListAudit, want)
		}
		return printList(sys, &list, &c.out, fetch, (*warifuv1.ListAuditResponse).GetEntries,
			[]string{"AT", "ACTOR", "ACTION", "TARGET", "REASON", "REQUEST"}, func(e *warifuv1.AuditEntry) []string {
				return []string{
					instant(e.GetAt()), plain(e.GetActor()), plain(e.GetAction()), orDash(plain(e.GetTarget())),
					orDash(plain(e.GetReason())), orDash(plain(e.GetRequestId())),
				}
			})
	}
	return cmd
}

// instantOrAgo reads an instant, or a length of time before now; nil where
// nothing was given.
func instantOrAgo(now time.Time, flag, text string) (*timestamppb.Timestamp, error) {
	if text == "" || strings.Contains(text, ":") {
		return instantOrLater(now, flag, text)
	}
	length, err := parseDuration(text)
	if err != nil || length < 0 {
		return nil, usageError("%s %q: it is an instant such as 2027-01-31T00:00:00Z or a length of time such as 7d", flag, text)
	}
	return timestamppb.New(now.Add(-length)), nil
}
