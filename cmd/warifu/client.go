package main

import (
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
type clientFlags struct {
	sys        *system
	url        string
	apiKeyFile string
	timeout    time.Duration
}

func (f *clientFlags) bind(sys *system, cmd *cobra.Command) {
	f.sys = sys
	cmd.Flags().StringVar(&f.url, "url", "", "the server (WARIFU_URL; default "+defaultURL+")")
	cmd.Flags().StringVar(&f.apiKeyFile, "api-key-file", "", "file with the API key (WARIFU_API_KEY_FILE; or WARIFU_API_KEY holds the key)")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 5*time.Second, "for one try of one call")
}

func (f *clientFlags) server() string {
	if f.url != "" {
		return f.url
	}
	if url := f.sys.env("WARIFU_URL"); url != "" {
		return url
	}
	return defaultURL
}

// key returns the API key: the flag's file, WARIFU_API_KEY, or the file that
// WARIFU_API_KEY_FILE names.
func (f *clientFlags) key() (string, error) {
	path := f.apiKeyFile
	if path == "" {
		if key := f.sys.env("WARIFU_API_KEY"); key != "" {
			return key, nil
		}
		path = f.sys.env("WARIFU_API_KEY_FILE")
	}
	if path == "" {
		return "", exit(exitDenied, errors.New("no API key: set WARIFU_API_KEY or WARIFU_API_KEY_FILE; 'warifu dev' prints one"))
	}
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
	c, err := warifu.New(f.server(), warifu.WithAPIKey(key), warifu.WithTimeout(f.timeout))
	if err != nil {
		return nil, exit(exitUsage, err)
	}
	return c, nil
}

// connection is for services that the SDK does not speak.
func (f *clientFlags) connection() (*connect.Client, error) {
	key, err := f.key()
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
	transport := connecthttp.NewTransport(&http.Client{
		Timeout: f.timeout,
		// The API key goes where it was meant to go.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, f.server(), connecthttp.WithCompressors())
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

// failedCall gives the error of a call its exit code and says which server it
// was that did not answer.
func (f *clientFlags) failedCall(err error) error {
	switch connect.CodeOf(err) {
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded, connect.CodeResourceExhausted:
		return exit(exitUnavailable, fmt.Errorf("%s: %w", f.server(), err))
	case connect.CodeUnauthenticated, connect.CodePermissionDenied:
		return exit(exitDenied, err)
	case connect.CodeInvalidArgument, connect.CodeNotFound:
		return exit(exitUsage, err)
	default:
		return exit(exitFailed, fmt.Errorf("%s: %w", f.server(), err))
	}
}
