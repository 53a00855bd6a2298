package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/warifu/warifu/server/tenant"
)

func newContext(sys *system) *cobra.Command {
	cmd := &cobra.Command{
		Use: "context", Short: "Keep servers and keys under names", GroupID: groupTools, Args: cobra.NoArgs, RunE: needsCommand,
		Long: `A context is a server with a key, and for keys of the platform a tenant. Commands
that ask a server take what their flags say, else what WARIFU_URL, WARIFU_API_KEY
and WARIFU_API_KEY_FILE say, else what the context says. A context that --context
names goes before those variables.

Contexts are kept in $XDG_CONFIG_HOME/warifu/contexts.yaml (~/.config/warifu/ without
that variable), which only its owner may read. A context's key, tenant, authorities
and client certificate are for the context's server only: with another URL the key
is refused and the others do not count. In turn a key that is in a variable is sent
to a server that a variable or --url names, never to one that a context names.`,
	}
	cmd.AddCommand(newContextAdd(sys), newContextUse(sys), newContextList(sys), newContextShow(sys), newContextRemove(sys))
	return cmd
}

func newContextAdd(sys *system) *cobra.Command {
	var c savedContext
	var stdin, replace bool
	cmd := &cobra.Command{
		Use: "add NAME", Short: "Keep a server and a key; the first one added is in use from then on", Args: cobra.ExactArgs(1),
		Long: `Keeps a server and a key. With --api-key-file the key stays in that file; with
--api-key-stdin it is kept among the contexts.`,
	}
	cmd.Flags().StringVar(&c.URL, "url", "", "the server (required)")
	cmd.Flags().StringVar(&c.APIKeyFile, "api-key-file", "", "file with the API key, which is read whenever it is needed")
	cmd.Flags().BoolVar(&stdin, "api-key-stdin", false, "read the API key from standard input")
	cmd.Flags().StringVar(&c.Tenant, "tenant", "", "for keys of the platform: the tenant to act for")
	cmd.Flags().StringVar(&c.CAFile, "ca-file", "", "PEM file with authorities that the server's certificate is checked against")
	cmd.Flags().StringVar(&c.ClientCertFile, "client-cert-file", "", "PEM file with a certificate, for servers that ask for one")
	cmd.Flags().StringVar(&c.ClientKeyFile, "client-key-file", "", "PEM file with its key")
	cmd.Flags().BoolVar(&replace, "replace", false, "replace a context of this name")
	cmd.MarkFlagsMutuallyExclusive("api-key-file", "api-key-stdin")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		name := args[0]
		if !contextNameForm.MatchString(name) {
			return usageError("a context's name is 1-64 characters of [A-Za-z0-9._-] and begins with none of the last three")
		}
		kept, err := readContexts(sys)
		if err != nil {
			return err
		}
		if _, there := kept.Contexts[name]; there && !replace {
			return exit(exitConflict, fmt.Errorf("there is a context %q already; --replace replaces it", name))
		}
		if err := c.complete(sys, stdin); err != nil {
			return err
		}
		kept.Contexts[name] = c
		if kept.Current == "" {
			kept.Current = name
		}
		if strings.HasPrefix(c.URL, "http://") && !isLoopbackURL(c.URL) {
			row(sys.stderr, "warning: over http:// the key and all data travel readable")
		}
		if err := kept.write(); err != nil {
			return err
		}
		row(sys.stderr, fmt.Sprintf("kept context %q in %s; in use: %q", name, kept.path, kept.Current))
		return nil
	}
	return cmd
}

// complete checks what was given and reads the key, to find a wrong one now.
func (c *savedContext) complete(sys *system, stdin bool) error {
	if c.URL == "" {
		return usageError("--url is missing")
	}
	if err := checkServerURL(c.URL); err != nil {
		return err
	}
	for _, path := range []*string{&c.CAFile, &c.ClientCertFile, &c.ClientKeyFile} {
		if *path != "" {
			*path = absolute(*path)
		}
	}
	if _, err := clientTLS(clientTLSFiles{ca: c.CAFile, cert: c.ClientCertFile, key: c.ClientKeyFile}, sys.now); err != nil {
		return exit(exitUsage, err)
	}
	var key string
	var err error
	switch {
	case stdin:
		key, err = readKeyLine(sys.stdin)
		c.APIKey = key
	case c.APIKeyFile != "":
		c.APIKeyFile = absolute(c.APIKeyFile)
		key, err = keyIn(c.APIKeyFile)
	default:
		return usageError("no API key: give --api-key-file, or --api-key-stdin")
	}
	if err != nil {
		return err
	}
	if _, _, ok := tenant.ParseKey(key); !ok {
		return usageError("that is no API key, or it has a typing error: it reads wf_ENVIRONMENT_ID_SECRET_CHECKSUM")
	}
	return nil
}

// keyBytesMax is more than any key has.
const keyBytesMax = 4 << 10

func readKeyLine(r io.Reader) (string, error) {
	b, err := io.ReadAll(io.LimitReader(r, keyBytesMax))
	if err != nil {
		return "", exit(exitUsage, fmt.Errorf("read the API key: %w", err))
	}
	return strings.TrimSpace(string(b)), nil
}

func isLoopbackURL(text string) bool {
	u, err := url.Parse(text)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return u.Hostname() == "localhost" || err == nil && ip.IsLoopback()
}

func newContextUse(sys *system) *cobra.Command {
	return &cobra.Command{
		Use: "use NAME", Short: "Have commands use a context when nothing else is said", Args: cobra.ExactArgs(1),
		ValidArgsFunction: completeContext(sys),
		RunE: func(_ *cobra.Command, args []string) error {
			kept, err := readContexts(sys)
			if err != nil {
				return err
			}
			if _, err := kept.get(args[0]); err != nil {
				return err
			}
			kept.Current = args[0]
			return kept.write()
		},
	}
}

func newContextRemove(sys *system) *cobra.Command {
	return &cobra.Command{
		Use: "remove NAME", Short: "Forget a context; its key stays valid", Args: cobra.ExactArgs(1),
		ValidArgsFunction: completeContext(sys),
		RunE: func(_ *cobra.Command, args []string) error {
			kept, err := readContexts(sys)
			if err != nil {
				return err
			}
			if _, err := kept.get(args[0]); err != nil {
				return err
			}
			delete(kept.Contexts, args[0])
			if kept.Current == args[0] {
				kept.Current = ""
			}
			return kept.write()
		},
	}
}

// shownContext is a context as it is printed: its key masked.
type shownContext struct {
	Name       string `json:"name"`
	Current    bool   `json:"current"`
	URL        string `json:"url"`
	APIKey     string `json:"apiKey,omitempty"`
	APIKeyFile string `json:"apiKeyFile,omitempty"`
	Tenant     string `json:"tenant,omitempty"`
	CAFile     string `json:"caFile,omitempty"`
	ClientCert string `json:"clientCertFile,omitempty"`
	ClientKey  string `json:"clientKeyFile,omitempty"`
}

func (k *contextFile) shown(name string) shownContext {
	c := k.Contexts[name]
	out := shownContext{
		Name: name, Current: name == k.Current, URL: c.URL, APIKeyFile: c.APIKeyFile, Tenant: c.Tenant,
		CAFile: c.CAFile, ClientCert: c.ClientCertFile, ClientKey: c.ClientKeyFile,
	}
	if c.APIKey != "" {
		out.APIKey = maskKey(c.APIKey)
	}
	return out
}

func newContextList(sys *system) *cobra.Command {
	var out output
	cmd := &cobra.Command{Use: "list", Short: "List contexts", Args: cobra.NoArgs}
	out.bind(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		if err := out.validate(); err != nil {
			return err
		}
		kept, err := readContexts(sys)
		if err != nil {
			return err
		}
		all := []shownContext{}
		for _, name := range kept.names() {
			all = append(all, kept.shown(name))
		}
		return out.write(sys.stdout, all, func(w io.Writer) {
			row(w, "", "NAME", "URL", "KEY", "TENANT")
			for _, c := range all {
				mark := ""
				if c.Current {
					mark = "*"
				}
				row(w, mark, c.Name, plain(c.URL), plain(c.APIKey+c.APIKeyFile), orDash(plain(c.Tenant)))
			}
		})
	}
	return cmd
}

func newContextShow(sys *system) *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use: "show [NAME]", Short: "Show a context, or the one in use", Args: cobra.MaximumNArgs(1), ValidArgsFunction: completeContext(sys),
	}
	out.bind(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if err := out.validate(); err != nil {
			return err
		}
		c, err := chooseContext(sys, strings.Join(args, ""))
		if err != nil {
			return err
		}
		if c == nil {
			return exit(exitNotFound, errors.New("no context is in use; see 'warifu context add'"))
		}
		kept, err := readContexts(sys)
		if err != nil {
			return err
		}
		shown := kept.shown(c.name)
		return out.write(sys.stdout, shown, func(w io.Writer) {
			row(w, "name", shown.Name)
			row(w, "current", yesNo(shown.Current))
			row(w, "url", plain(shown.URL))
			row(w, "api key", orDash(plain(shown.APIKey)))
			row(w, "api key file", orDash(plain(shown.APIKeyFile)))
			row(w, "tenant", orDash(plain(shown.Tenant)))
			row(w, "ca file", orDash(plain(shown.CAFile)))
			row(w, "client certificate", orDash(plain(shown.ClientCert)))
		})
	}
	return cmd
}

func completeContext(sys *system) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return contextNames(sys), cobra.ShellCompDirectiveNoFileComp
	}
}
