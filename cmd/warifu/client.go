package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"github.com/spf13/cobra"

	"github.com/warifu/warifu/api/gen/warifu/v1/warifuv1connect"
	warifu "github.com/warifu/warifu/sdk/go"
)

const defaultURL = "http://127.0.0.1:8080"

// clientFlags say which server a command asks, and as whom. The key itself is
// never a flag: other users of the machine can read those.
//
// Each value is that of a flag, else of a variable, else of the context in use.
// A context that --context names is as good as flags: it goes before variables.
// What a context says beside its URL holds for that URL only.
type clientFlags struct {
	sys        *system
	cmd        *cobra.Command
	url        string
	apiKeyFile string
	trust      clientTLSFiles
	context    string
	tenant     string
	timeout    time.Duration

	looked bool // whether the next two are known
	used   *savedContext
	fault  error
}

func (f *clientFlags) bind(sys *system, cmd *cobra.Command) {
	f.sys, f.cmd = sys, cmd
	cmd.Flags().StringVar(&f.context, "context", "", "what 'warifu context add' keeps under this name (WARIFU_CONTEXT)")
	cmd.Flags().StringVar(&f.url, "url", "", "the server (WARIFU_URL; default "+defaultURL+")")
	cmd.Flags().StringVar(&f.apiKeyFile, "api-key-file", "", "file with the API key (WARIFU_API_KEY_FILE; or WARIFU_API_KEY holds the key)")
	cmd.Flags().StringVar(&f.trust.ca, "ca-file", "", "PEM file with authorities that the server's certificate is checked against; default: the system's")
	cmd.Flags().StringVar(&f.trust.cert, "client-cert-file", "", "PEM file with a certificate, for servers that ask for one")
	cmd.Flags().StringVar(&f.trust.key, "client-key-file", "", "PEM file with its key")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 5*time.Second, "for one try of one call")
	// The only error is a flag that does not exist, and it was made above.
	_ = cmd.RegisterFlagCompletionFunc("context", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return contextNames(sys), cobra.ShellCompDirectiveNoFileComp
	})
}

// bindTenant is for commands whose answer depends on the tenant.
func (f *clientFlags) bindTenant(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.tenant, "tenant", "",
		"with a key of the platform: the tenant to act for; default: the context's; --tenant= for none")
	_ = cmd.RegisterFlagCompletionFunc("tenant", f.completeTenants)
}

// saved returns the context in use; nil where there is none.
func (f *clientFlags) saved() (*savedContext, error) {
	if !f.looked {
		f.looked = true
		f.used, f.fault = chooseContext(f.sys, f.context)
	}
	return f.used, f.fault
}

// server is the server's URL. A file of contexts that cannot be read is reported
// by whoever needs the key.
func (f *clientFlags) server() string {
	kept, variable := "", f.sys.env("WARIFU_URL")
	if c, err := f.saved(); err == nil && c != nil {
		kept = c.URL
	}
	if f.context != "" {
		return cmp.Or(f.url, kept, variable, defaultURL)
	}
	return cmp.Or(f.url, variable, kept, defaultURL)
}

// ofContext is what the context says of its own server. Like its key, that goes
// nowhere else: another server's tenant of the same name is not the one that was
// meant, and neither is whom to trust there.
func (f *clientFlags) ofContext(of func(*savedContext) string) string {
	if c, err := f.saved(); err == nil && c != nil && c.URL == f.server() {
		return of(c)
	}
	return ""
}

// actsFor is the tenant that requests name: only keys of the platform need one.
func (f *clientFlags) actsFor() string {
	if given := f.cmd.Flags().Lookup("tenant"); given != nil && given.Changed {
		return f.tenant
	}
	return f.ofContext(func(c *savedContext) string { return c.Tenant })
}

// meant refuses to send the key of a variable to a server that only a context
// names: whoever set the variable may not know of the context.
func (f *clientFlags) meant(variable string) error {
	used := f.used // the caller has looked
	if used == nil || used.URL == "" || f.url != "" || f.context == "" && f.sys.env("WARIFU_URL") != "" {
		return nil
	}
	ways := "set WARIFU_URL or give --url; to use the context's own key, unset " + variable + " or give --context " + used.name
	if f.context != "" { // which goes before WARIFU_URL, and has no key
		ways = "give --url, or keep a key in the context"
	}
	return exit(exitDenied, fmt.Errorf("%s does not say which server its key is for, and %s is that of context %q: to send it there, %s",
		variable, used.URL, used.name, ways))
}

// key returns the API key: the flag's file, WARIFU_API_KEY, the file that
// WARIFU_API_KEY_FILE names, or the context's.
func (f *clientFlags) key() (string, error) {
	used, err := f.saved()
	if err != nil {
		return "", err
	}
	variables := f.sys.env("WARIFU_API_KEY") != "" || f.sys.env("WARIFU_API_KEY_FILE") != ""
	kept := used != nil && used.hasKey()
	switch {
	case f.apiKeyFile != "":
		return keyIn(f.apiKeyFile)
	case kept && (f.context != "" || !variables):
		return used.keyFor(f.server())
	case f.sys.env("WARIFU_API_KEY") != "":
		return f.sys.env("WARIFU_API_KEY"), f.meant("WARIFU_API_KEY")
	case variables:
		if err := f.meant("WARIFU_API_KEY_FILE"); err != nil {
			return "", err
		}
		return keyIn(f.sys.env("WARIFU_API_KEY_FILE"))
	}
	return "", exit(exitDenied, errors.New("no API key: set WARIFU_API_KEY or WARIFU_API_KEY_FILE, or see 'warifu context add'; 'warifu dev' prints one"))
}

func keyIn(path string) (string, error) {
	key, err := readSecretFile(path)
	if err != nil {
		return "", exit(exitUsage, err)
	}
	return key, nil
}

// client returns the SDK's client; the caller closes it.
func (f *clientFlags) client() (*warifu.Client, error) {
	key, err := f.key()
	if err != nil {
		return nil, err
	}
	options := []warifu.Option{warifu.WithAPIKey(key), warifu.WithTimeout(f.timeout)}
	over, err := f.roundTripper()
	if err != nil {
		return nil, err
	}
	if over != nil {
		options = append(options, warifu.WithHTTPClient(&http.Client{Transport: over, CheckRedirect: noRedirect}))
	}
	c, err := warifu.New(f.server(), options...)
	if err != nil {
		return nil, exit(exitUsage, err)
	}
	return c, nil
}

// roundTripper is nil where the usual one serves: nothing is said about whom to
// trust.
func (f *clientFlags) roundTripper() (http.RoundTripper, error) {
	files := clientTLSFiles{
		ca:   cmp.Or(f.trust.ca, f.ofContext(func(c *savedContext) string { return c.CAFile })),
		cert: cmp.Or(f.trust.cert, f.ofContext(func(c *savedContext) string { return c.ClientCertFile })),
		key:  cmp.Or(f.trust.key, f.ofContext(func(c *savedContext) string { return c.ClientKeyFile })),
	}
	if files == (clientTLSFiles{}) {
		return nil, nil //nolint:nilnil // documented: the usual one
	}
	config, err := clientTLS(files, f.sys.now)
	if err != nil {
		return nil, exit(exitUsage, err)
	}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, TLSHandshakeTimeout: f.timeout, TLSClientConfig: config,
	}, nil
}

// noRedirect: the API key goes where it was meant to go.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// connection is for services that the SDK does not speak.
func (f *clientFlags) connection() (*connect.Client, error) {
	key, err := f.key()
	if err != nil {
		return nil, err
	}
	over, err := f.roundTripper()
	if err != nil {
		return nil, err
	}
	bearer := "Bearer " + key
	authorize := func(next connect.ClientFunc) connect.ClientFunc {
		return func(ctx context.Context, spec connect.Spec) (connect.ClientStream, error) {
			info, ok := connect.CallInfoForClientContext(ctx)
			if !ok {
				ctx, info = connect.NewClientContext(ctx)
			}
			info.RequestHeader().Set("Authorization", bearer)
			return next(ctx, spec)
		}
	}
	transport := connecthttp.NewTransport(&http.Client{Timeout: f.timeout, Transport: over, CheckRedirect: noRedirect},
		f.server(), connecthttp.WithCompressors())
	return connect.NewClient(transport, authorize), nil
}

func (f *clientFlags) admin() (warifuv1connect.ClaimAdminServiceClient, error) {
	c, err := f.connection()
	if err != nil {
		return nil, err
	}
	return warifuv1connect.NewClaimAdminServiceClient(c), nil
}

func (f *clientFlags) claims() (warifuv1connect.ClaimServiceClient, error) {
	c, err := f.connection()
	if err != nil {
		return nil, err
	}
	return warifuv1connect.NewClaimServiceClient(c), nil
}

// team is the service for the owners of a tenant.
func (f *clientFlags) team() (warifuv1connect.TenantAdminServiceClient, error) {
	c, err := f.connection()
	if err != nil {
		return nil, err
	}
	return warifuv1connect.NewTenantAdminServiceClient(c), nil
}

// platform is the service for those who run an installation.
func (f *clientFlags) platform() (warifuv1connect.PlatformAdminServiceClient, error) {
	c, err := f.connection()
	if err != nil {
		return nil, err
	}
	return warifuv1connect.NewPlatformAdminServiceClient(c), nil
}
