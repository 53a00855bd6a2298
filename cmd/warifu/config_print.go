package main

import (
	"io"
	"strings"

	"github.com/spf13/cobra"
)

func newConfig(sys *system) *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Look at the server's configuration", GroupID: groupTools, Args: cobra.NoArgs, RunE: needsCommand}
	cmd.AddCommand(newConfigPrint(sys))
	return cmd
}

func newConfigPrint(sys *system) *cobra.Command {
	var effective bool
	cmd := &cobra.Command{
		Use: "print", Short: "Check the configuration of `warifu serve` and print it", Args: cobra.NoArgs,
		Long: `Checks what 'warifu serve' would start with and prints it as YAML: defaults,
file, WARIFU_* variables and flags together with --effective, otherwise the
settings with their defaults and variables. Key hashes and passwords are masked.`,
	}
	configFlags(cmd, serveDefault)
	cmd.Flags().BoolVar(&effective, "effective", false, "print the values that would be in force")
	cmd.RunE = func(*cobra.Command, []string) error {
		if !effective {
			return printSettings(sys)
		}
		c, err := loadConfig(sys, cmd.Flags(), serveDefault)
		if err != nil {
			return err
		}
		if _, err := tenantTable(c.Tenants); err != nil {
			return err
		}
		return writeYAML(sys.stdout, masked(c.written))
	}
	return cmd
}

func serveDefault(s setting) string { return s.serve }

func devDefault(s setting) string { return s.dev }

func printSettings(sys *system) error {
	out := output{format: outputTable}
	return out.write(sys.stdout, nil, func(w io.Writer) {
		row(w, "KEY", "VARIABLE", "FLAG", "DEFAULT", "MEANING")
		for _, s := range settings {
			row(w, s.key, s.variable(), "--"+s.flag(), s.serve, s.help)
		}
		row(w, "tenants", "-", "-", "-", "tenants with their keys and consumers; file only")
	})
}

// maskedSecret stands where something secret, or a hash of it, is configured.
const maskedSecret = "********"

// masked is a copy of the configuration as it was written, without secrets.
func masked(value any) any {
	switch v := value.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for name, inner := range v {
			if out[name] = masked(inner); strings.Contains(name, "secret") {
				out[name] = maskedSecret
			} else if text, ok := inner.(string); ok && name == "store" {
				out[name] = maskURL(text)
			}
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = masked(v[i])
		}
		return out
	}
	return value
}
