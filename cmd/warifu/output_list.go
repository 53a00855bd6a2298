package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
)

// listPage is how many rows one request asks for at most.
const listPage = 500

// listFlags say how much of a list is wanted.
type listFlags struct {
	limit int
	size  uint32
	token string
	cmd   *cobra.Command
}

// bind adds the flags; limit is the default of --limit.
func (l *listFlags) bind(cmd *cobra.Command, limit int) {
	l.cmd = cmd
	cmd.Flags().IntVar(&l.limit, "limit", limit, "how many at most; 0: all")
	cmd.Flags().Uint32Var(&l.size, "page-size", 0, "one page of so many, 1-500, with the token that goes on behind it")
	cmd.Flags().StringVar(&l.token, "page-token", "", "one page: the one behind that of this token")
	cmd.MarkFlagsMutuallyExclusive("limit", "page-size")
	cmd.MarkFlagsMutuallyExclusive("limit", "page-token")
}

func (l *listFlags) validate() error {
	if l.limit < 0 {
		return usageError("--limit %d: it is 0 or more", l.limit)
	}
	if l.size > listPage || l.cmd.Flags().Changed("page-size") && l.size == 0 {
		return usageError("--page-size %d: it is 1-%d", l.size, listPage)
	}
	return nil
}

func (l *listFlags) onePage() bool {
	return l.cmd.Flags().Changed("page-size") || l.cmd.Flags().Changed("page-token")
}

// reply is a page of a list as the API sends it.
type reply interface {
	proto.Message
	GetNextPageToken() string
}

var errSamePage = errors.New("the server gives the same page token again and again; what was read so far is not all of it")

// collect reads the pages of a list until there are limit rows; 0: all. more is
// the token behind them, empty where nothing is left.
func collect[R proto.Message, P reply](limit int, fetch func(size uint32, token string) (P, error), rows func(P) []R) (found []R, more string, err error) {
	for limit == 0 || len(found) < limit {
		size := uint32(listPage)
		if limit > 0 {
			size = uint32(min(listPage, limit-len(found))) //nolint:gosec // 1-500
		}
		p, err := fetch(size, more)
		if err != nil {
			return nil, "", err
		}
		found = append(found, rows(p)...)
		if p.GetNextPageToken() == "" {
			return found, "", nil
		}
		if p.GetNextPageToken() == more {
			return nil, "", errSamePage
		}
		more = p.GetNextPageToken()
	}
	return found, more, nil
}

// printList reads a list and prints it: one array of all rows, or one page as
// the API sends it. head are the columns of the table.
func printList[R proto.Message, P reply](
	sys *system, l *listFlags, out *output, fetch func(size uint32, token string) (P, error), rows func(P) []R,
	head []string, cells func(R) []string,
) error {
	if l.onePage() {
		p, err := fetch(l.size, l.token)
		if err != nil {
			return err
		}
		v, err := asJSON(p)
		if err != nil {
			return err
		}
		if token := p.GetNextPageToken(); token != "" && out.format == outputTable {
			row(sys.stderr, "the next page: --page-token "+token)
		}
		return out.write(sys.stdout, v, tableOf(rows(p), head, cells))
	}
	found, more, err := collect(l.limit, fetch, rows)
	if err != nil {
		return err
	}
	if more != "" && isTerminal(sys.stderr) {
		row(sys.stderr, fmt.Sprintf("the first %d are shown; --limit 0 shows all", l.limit))
	}
	values := make([]json.RawMessage, len(found))
	for i, r := range found {
		if values[i], err = asJSON(r); err != nil {
			return err
		}
	}
	return out.write(sys.stdout, values, tableOf(found, head, cells))
}

func tableOf[R any](rows []R, head []string, cells func(R) []string) func(io.Writer) {
	return func(w io.Writer) {
		row(w, head...)
		for _, r := range rows {
			row(w, cells(r)...)
		}
	}
}

// printMessage prints one message.
func printMessage(sys *system, out *output, m proto.Message, table func(io.Writer)) error {
	v, err := asJSON(m)
	if err != nil {
		return err
	}
	return out.write(sys.stdout, v, table)
}
