package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// The values of --output.
const (
	outputTable = "table"
	outputJSON  = "json"
	outputYAML  = "yaml"
)

// output is the -o flag and what it does.
type output struct{ format string }

func (o *output) bind(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&o.format, "output", "o", outputTable, "table, json or yaml")
	formats := []string{outputTable, outputJSON, outputYAML}
	// The only error is a flag that does not exist, and it was made above.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
}

func (o *output) validate() error {
	switch o.format {
	case outputTable, outputJSON, outputYAML:
		return nil
	}
	return usageError("--output %q: it is one of table, json, yaml", o.format)
}

// write prints v as JSON or YAML, or what table draws. Columns of the table
// are separated by tabs.
func (o *output) write(w io.Writer, v any, table func(io.Writer)) error {
	switch o.format {
	case outputJSON:
		b, err := json.MarshalIndent(v, "", "  ")
		if err != nil {
			return fmt.Errorf("print as JSON: %w", err)
		}
		_, err = fmt.Fprintf(w, "%s\n", b)
		return err
	case outputYAML:
		return writeYAML(w, v)
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	table(tw)
	return tw.Flush()
}

// writeYAML goes through JSON so that both formats have the same names. JSON is
// not quite YAML, which forbids some characters that JSON allows as they are:
// each format is read and written by its own package.
func writeYAML(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("print as YAML: %w", err)
	}
	var plain any
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	if err := dec.Decode(&plain); err != nil {
		return fmt.Errorf("print as YAML: %w", err)
	}
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	if err := enc.Encode(withNumbers(plain)); err != nil {
		return fmt.Errorf("print as YAML: %w", err)
	}
	return enc.Close()
}

// withNumbers has the numbers of decoded JSON written in YAML digit by digit.
func withNumbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			v[name] = withNumbers(value)
		}
	case []any:
		for i, value := range v {
			v[i] = withNumbers(value)
		}
	case json.Number:
		return &yaml.Node{Kind: yaml.ScalarNode, Value: v.String()}
	}
	return v
}

// asJSON is a message the way the API says it in JSON.
func asJSON(m proto.Message) (json.RawMessage, error) {
	b, err := protojson.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("print as JSON: %w", err)
	}
	return b, nil
}

// row prints one line of a table; a failing stream is found by the flush.
func row(w io.Writer, cells ...string) {
	_, _ = fmt.Fprintln(w, strings.Join(cells, "\t"))
}

// plain makes text of unknown origin safe for a terminal and for a table:
// what is not printable is escaped, so an event ID can neither move the cursor
// nor forge a column.
func plain(s string) string {
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return strconv.Quote(s)
		}
	}
	return s
}

// word is an enum value without its prefix: STATE_COMPLETED is COMPLETED.
func word(value fmt.Stringer, prefix string) string {
	return strings.TrimPrefix(value.String(), prefix)
}

func instant(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return t.AsTime().UTC().Format(time.RFC3339)
}
