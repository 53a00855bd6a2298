package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage/registry"
)

const (
	devTenantName   = "dev"
	devKeyFile      = "dev.key"
	devOperatorFile = "dev-platform.key"
)

func newDev(sys *system) *cobra.Command {
	cmd := &cobra.Command{
		Use: "dev", Short: "Start a server to develop against: one tenant, one key, no configuration", GroupID: groupServer, Args: cobra.NoArgs,
		Long: `Starts a server with the tenant "dev" and the embedded store in --data. Its API
key is made once, printed, and kept in <data>/dev.key; a second one, of the
platform, is kept in <data>/dev-platform.key for 'warifu tenants'. Claims are as durable as
with 'serve': stop it, kill it, start it again, and duplicates are still
answered.

With --store the claims are in a database, and only the keys are in --data's
default place, ./warifu-data.

It listens on loopback only unless told otherwise. Metrics are off unless
--metrics-listen names an address.`,
	}
	configFlags(cmd, devDefault)
	cmd.RunE = func(*cobra.Command, []string) error {
		c, err := loadConfig(sys, cmd.Flags(), devDefault)
		if err != nil {
			return err
		}
		if len(c.Tenants) > 0 {
			return usageError("'warifu dev' has one tenant of its own; start configured tenants with 'warifu serve'")
		}
		return runDev(cmd, sys, c)
	}
	return cmd
}

func runDev(cmd *cobra.Command, sys *system, c *config) error {
	if err := c.checkServing(sys); err != nil {
		return err
	}
	d, err := newDaemon(sys, c)
	if err != nil {
		return err
	}
	warnOfOpenData(d.log, c.Data) // with a database, too: the keys are there
	var key string
	d.table = func() (*tenant.Table, error) { return tenant.NewTable(nil) }
	d.prepare = func(ctx context.Context, reg registry.Registry) error {
		if err := devTenantStays(ctx, reg, c); err != nil {
			return err
		}
		text, team, err := devKey(c.Data, devKeyFile)
		if err != nil {
			return err
		}
		key = text
		_, operator, err := devKey(c.Data, devOperatorFile)
		if err != nil {
			return err
		}
		if err := seed(ctx, reg, team, operator); err != nil {
			return fmt.Errorf("make the tenant %q: %w", devTenantName, err)
		}
		return nil
	}
	d.ready = func(address net.Addr) error {
		if !isLoopback(address) && c.TLSCert == "" {
			d.log.Warn("the API is open to the network, without TLS; its only protection is the key", "listen", address.String())
		}
		return greet(sys.stdout, welcome{
			URL: urlOf(address, c.TLSCert != ""), Key: key, Data: where(c.target), KeyFile: absolute(filepath.Join(c.Data, devKeyFile)),
			Program: program(), EventID: "order-" + uuid.NewString()[:8], AttemptID: uuid.NewString(),
		})
	}
	return d.run(cmd.Context())
}

// devTenantStays refuses a store whose development tenant is being deleted: the
// key that would be printed could do nothing.
func devTenantStays(ctx context.Context, reg registry.Registry, c *config) error {
	known, err := reg.Load(ctx, 0)
	if err != nil {
		return fmt.Errorf("look for the tenant %q: %w", devTenantName, err)
	}
	for i := range known.Tenants {
		if t := &known.Tenants[i]; !t.Deleted && t.Name == devTenantName && t.State == registry.TenantDeleting {
			return exit(exitPrecondition, fmt.Errorf(
				"the tenant %q of %s is being deleted, and its name is free when its records are gone: let 'warifu serve --store %s' finish that in a minute or more, or take another place with --data or --store",
				devTenantName, c.target, shellWord(c.target.String())))
		}
	}
	return nil
}

// where is how people call a store's place.
func where(t target) string {
	if t.sql() {
		return t.String()
	}
	return t.dir
}

// devKey returns the key kept in a file of dir, or makes it. With a database for a store,
// several processes may do so at once: they come to the same key.
func devKey(dir, file string) (string, tenant.Key, error) {
	path := filepath.Join(dir, file)
	text, err := readSecretFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		made, key := tenant.NewKey(devTenantName)
		if err = writeSecretFile(path, made); !errors.Is(err, fs.ErrExist) {
			return made, key, err
		}
		text, err = readSecretFile(path) // another process was faster
	}
	if err != nil {
		return "", tenant.Key{}, err
	}
	id, secret, ok := tenant.ParseKey(text)
	if !ok {
		return "", tenant.Key{}, fmt.Errorf("%s holds no API key; delete it to have a new one made", path)
	}
	return text, tenant.Key{ID: id, SecretSHA256: sha256.Sum256([]byte(secret))}, nil
}

// writeSecretFile leaves either the whole file or none. One that is there stays
// as it is: the error is fs.ErrExist then.
func writeSecretFile(path, text string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("keep the API key: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*") // 0600
	if err != nil {
		return fmt.Errorf("keep the API key: %w", err)
	}
	_, err = f.WriteString(text + "\n")
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = place(f.Name(), path)
	} else {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	if err != nil {
		return fmt.Errorf("keep the API key: %w", err)
	}
	return nil
}

// place gives a file its name, unless another has it. Where the file system has
// no hard links, which is how to find that out, the other is replaced.
func place(from, to string) error {
	err := os.Link(from, to)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return os.Rename(from, to)
	}
	return errors.Join(err, os.Remove(from))
}

// welcome is what `warifu dev` says first.
type welcome struct {
	URL, Key, KeyFile, Data, Program, EventID, AttemptID string
}

func greet(w io.Writer, about welcome) error {
	if err := welcomeText.Execute(w, about); err != nil {
		return fmt.Errorf("print the welcome: %w", err)
	}
	return nil
}

var welcomeText = template.Must(template.New("welcome").Funcs(template.FuncMap{"sh": shellWord}).Parse(
	`warifu dev listens on {{.URL}}

  API key  {{.Key}}
  kept in  {{.KeyFile}}
  data in  {{.Data}}

Claim an event:

  curl -sS {{.URL}}/warifu.v1.ClaimService/Claim \
    -H 'Authorization: Bearer {{.Key}}' \
    -H 'Content-Type: application/json' \
    -d '{"consumer":"inventory","eventId":"{{.EventID}}","attemptId":"{{.AttemptID}}","lease":"300s"}'

It is granted; sent again it is the same grant, and with another attemptId it is
in progress. Complete it with the fence that the grant names in place of FENCE,
and every later claim replays the result ("cmVzZXJ2ZWQgMw==" is "reserved 3"):

  curl -sS {{.URL}}/warifu.v1.ClaimService/Complete \
    -H 'Authorization: Bearer {{.Key}}' \
    -H 'Content-Type: application/json' \
    -d '{"consumer":"inventory","eventId":"{{.EventID}}","attemptId":"{{.AttemptID}}","fence":"FENCE","completion":{"outcome":"OUTCOME_SUCCEEDED","result":"cmVzZXJ2ZWQgMw=="}}'

Then, in another terminal (the second 'once' replays the first):

  export WARIFU_URL={{sh .URL}} WARIFU_API_KEY_FILE={{sh .KeyFile}}
  {{sh .Program}} once --consumer demo --event-id hello-1 -- date
  {{sh .Program}} once --consumer demo --event-id hello-1 -- date
  {{sh .Program}} claims list

Stop with Ctrl-C; what was acknowledged is kept.
`))

// shellWord quotes text for sh where that is needed.
func shellWord(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:@%+=,[]") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// urlOf is where a client on this machine finds the listener.
func urlOf(address net.Addr, secure bool) string {
	scheme := "http://"
	if secure {
		scheme = "https://"
	}
	tcp, ok := address.(*net.TCPAddr)
	if ok && tcp.IP.IsUnspecified() {
		return fmt.Sprintf("%s127.0.0.1:%d", scheme, tcp.Port)
	}
	return scheme + address.String()
}

// program is how to call this program again, from any folder.
func program() string {
	if len(os.Args) == 0 || os.Args[0] == "" {
		return "warifu"
	}
	if strings.ContainsRune(os.Args[0], filepath.Separator) {
		return absolute(os.Args[0])
	}
	return os.Args[0] // found in PATH, and will be again
}

func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}
