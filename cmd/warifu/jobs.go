package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

func newJobs(sys *system) *cobra.Command {
	cmd := &cobra.Command{
		Use: "jobs", Short: "Follow background jobs; needs a key of the platform", GroupID: groupAdmin, Args: cobra.NoArgs, RunE: needsCommand,
	}
	cmd.AddCommand(newJobsList(sys))
	return cmd
}

const jobStateWords = "PENDING, RUNNING, DONE, FAILED, CANCELLED"

func newJobsList(sys *system) *cobra.Command {
	var client clientFlags
	var out output
	var list listFlags
	var states []string
	cmd := &cobra.Command{Use: "list", Short: "List background jobs, newest first", Args: cobra.NoArgs}
	client.bind(sys, cmd)
	out.bind(cmd)
	list.bind(cmd, 0)
	cmd.Flags().StringSliceVar(&states, "state", nil, "only these states: "+jobStateWords)
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(strings.Split(jobStateWords, ", "), cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(*cobra.Command, []string) error {
		wanted, err := enums[warifuv1.JobState]("--state", states, "JOB_STATE_", warifuv1.JobState_value, jobStateWords)
		if err != nil {
			return err
		}
		api, err := ready(&out, &list, client.platform)
		if err != nil {
			return err
		}
		fetch := func(size uint32, token string) (*warifuv1.ListJobsResponse, error) {
			return call(cmd.Context(), &client, api.ListJobs, &warifuv1.ListJobsRequest{States: wanted, PageSize: size, PageToken: token})
		}
		return printList(sys, &list, &out, fetch, (*warifuv1.ListJobsResponse).GetJobs,
			[]string{"ID", "KIND", "STATE", "TENANT ID", "DONE", "ERROR", "UPDATED"}, func(j *warifuv1.Job) []string {
				return []string{
					plain(j.GetId()), plain(j.GetKind()), word(j.GetState(), "JOB_STATE_"), number(j.GetTenantId()), progress(j),
					orDash(plain(j.GetError())), instant(j.GetUpdatedAt()),
				}
			})
	}
	return cmd
}

func progress(j *warifuv1.Job) string {
	if j.GetTotal() == 0 {
		return number(j.GetDone())
	}
	return fmt.Sprintf("%d of %d", j.GetDone(), j.GetTotal())
}

// enums reads words as values of an enum: in any case, each once.
func enums[E ~int32](flag string, words []string, prefix string, values map[string]int32, known string) ([]E, error) {
	var out []E
	for _, text := range words {
		value := values[prefix+strings.ToUpper(text)]
		if value == 0 || !slices.Contains(strings.Split(known, ", "), strings.ToUpper(text)) {
			return nil, usageError("%s %q: it is one of %s", flag, text, known)
		}
		if !slices.Contains(out, E(value)) {
			out = append(out, E(value))
		}
	}
	return out, nil
}
