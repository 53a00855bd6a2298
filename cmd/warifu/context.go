package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/warifu/warifu/server/tenant"
)

// savedContext is a server and a key under one name, so that nobody has to keep
// both in variables.
type savedContext struct {
	name       string
	URL        string `yaml:"url"`
	APIKey     string `yaml:"api_key,omitempty"`      // either this
	APIKeyFile string `yaml:"api_key_file,omitempty"` // or this
	Tenant     string `yaml:"tenant,omitempty"`
	CAFile     string `yaml:"ca_file,omitempty"`
	// ClientCertFile and ClientKeyFile are for servers that ask for a certificate.
	ClientCertFile string `yaml:"client_cert_file,omitempty"`
	ClientKeyFile  string `yaml:"client_key_file,omitempty"`
}

func (c *savedContext) hasKey() bool { return c.APIKey != "" || c.APIKeyFile != "" }

// keyFor returns the key for a server. A context's key is for the context's
// server: it does not follow when another URL is given.
func (c *savedContext) keyFor(server string) (string, error) {
	if server != c.URL {
		return "", exit(exitDenied, fmt.Errorf(
			"no API key for %s: that of context %q is for %s and is sent nowhere else; give --api-key-file", server, c.name, c.URL))
	}
	if c.APIKey != "" {
		return c.APIKey, nil
	}
	return keyIn(c.APIKeyFile)
}

// contextFile is the file of all contexts.
type contextFile struct {
	path     string
	Current  string                  `yaml:"current,omitempty"`
	Contexts map[string]savedContext `yaml:"contexts"`
}

// contextNameForm: names stand in commands and in YAML without quotes.
var contextNameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// contextFileBytesMax is far more than anybody's contexts.
const contextFileBytesMax = 1 << 20

// contextPath is where contexts are kept: $XDG_CONFIG_HOME/warifu/contexts.yaml,
// and below ~/.config where that is not set.
func contextPath(sys *system) (string, error) {
	dir := sys.env("XDG_CONFIG_HOME")
	if !filepath.IsAbs(dir) { // as the specification of that variable asks
		home := sys.env("HOME")
		if home == "" {
			return "", usageError("there is no place for contexts: neither XDG_CONFIG_HOME nor HOME is set")
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "warifu", "contexts.yaml"), nil
}

// readContexts returns what is kept; no contexts where there is no file.
func readContexts(sys *system) (*contextFile, error) {
	path, err := contextPath(sys)
	if err != nil {
		return nil, err
	}
	kept := &contextFile{path: path, Contexts: map[string]savedContext{}}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return kept, nil
	}
	if err != nil {
		return nil, exit(exitUsage, fmt.Errorf("contexts: %w", err))
	}
	defer f.Close() //nolint:errcheck // it is only read
	info, err := f.Stat()
	if err != nil {
		return nil, exit(exitUsage, fmt.Errorf("contexts: %w", err))
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, usageError("contexts: others can read or change %s (mode %04o), and it may hold keys; chmod 600 it, and rotate the keys in it if others were there", path, mode)
	}
	dec := yaml.NewDecoder(io.LimitReader(f, contextFileBytesMax))
	dec.KnownFields(true)
	if err := dec.Decode(kept); err != nil && !errors.Is(err, io.EOF) {
		return nil, exit(exitUsage, fmt.Errorf("contexts: %s: %w", path, withoutValues(err)))
	}
	for name, c := range kept.Contexts {
		c.name = name
		kept.Contexts[name] = c
	}
	return kept, nil
}

// withoutValues is an error of the YAML package without the text that it quotes,
// which may be a key.
func withoutValues(err error) error {
	return errors.New(regexp.MustCompile("(?s)`.*?`").ReplaceAllString(err.Error(), maskedSecret))
}

// write replaces the file, as a whole or not at all.
func (k *contextFile) write() error {
	var text bytes.Buffer
	enc := yaml.NewEncoder(&text)
	enc.SetIndent(2)
	if err := errors.Join(enc.Encode(k), enc.Close()); err != nil {
		return fmt.Errorf("keep the contexts: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(k.path), 0o700); err != nil {
		return fmt.Errorf("keep the contexts: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(k.path), ".new-*") // 0600
	if err != nil {
		return fmt.Errorf("keep the contexts: %w", err)
	}
	_, err = f.Write(text.Bytes())
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), k.path)
	}
	if err != nil {
		return fmt.Errorf("keep the contexts: %w", errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}

func (k *contextFile) get(name string) (*savedContext, error) {
	c, ok := k.Contexts[name]
	if !ok {
		return nil, exit(exitNotFound, fmt.Errorf("no context %q; 'warifu context list' shows all", name))
	}
	return &c, nil
}

func (k *contextFile) names() []string { return slices.Sorted(maps.Keys(k.Contexts)) }

// chooseContext returns the context in use: that of the flag, of WARIFU_CONTEXT,
// or the current one. Without any it is nil.
func chooseContext(sys *system, flag string) (*savedContext, error) {
	name := flag
	if name == "" {
		name = sys.env("WARIFU_CONTEXT")
	}
	if name == "" && sys.env("HOME") == "" && sys.env("XDG_CONFIG_HOME") == "" {
		return nil, nil //nolint:nilnil // documented: none
	}
	kept, err := readContexts(sys)
	if err != nil {
		return nil, err
	}
	if name == "" {
		name = kept.Current
	}
	if name == "" {
		return nil, nil //nolint:nilnil // documented: none
	}
	return kept.get(name)
}

// contextNames is for completion, which reports no errors.
func contextNames(sys *system) []string {
	kept, err := readContexts(sys)
	if err != nil {
		return nil
	}
	return kept.names()
}

// checkServerURL refuses what no server is found under. The text is not
// repeated: it may hold a password that does not belong there.
func checkServerURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return usageError("--url: it is http://HOST:PORT or https://HOST:PORT, without a user")
	}
	return nil
}

// maskKey shows which key it is and nothing that would let anybody use it.
func maskKey(key string) string {
	id, _, ok := tenant.ParseKey(key)
	if !ok {
		return maskedSecret
	}
	return "wf_…_" + id + "_" + maskedSecret
}
