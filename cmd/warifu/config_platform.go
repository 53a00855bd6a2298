package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/warifu/warifu/server/journal"
	quotas "github.com/warifu/warifu/server/quota"
	"github.com/warifu/warifu/storage/sealed"
)

// journalOff is the journal of a server that has none.
const journalOff = "off"

// platformConfig is what is configured of who may use how much, of what is kept
// secret, and of what happens when the store is away.
type platformConfig struct {
	TLSCert     string   `koanf:"tls_cert_file"`
	TLSKey      string   `koanf:"tls_key_file"`
	TLSClientCA string   `koanf:"tls_client_ca_file"`
	Insecure    bool     `koanf:"insecure_listen"`
	Journal     string   `koanf:"journal"`
	JournalSize byteSize `koanf:"journal_size"`
	SealKeys    string   `koanf:"seal_key_files"`
	LogHashKey  string   `koanf:"log_hash_key_file"`
	Requests    limit    `koanf:"quota_requests"`
	Items       limit    `koanf:"quota_items"`
	LiveLeases  limit    `koanf:"quota_live_leases"`
	Keys        limit    `koanf:"quota_keys"`
	Bytes       limit    `koanf:"quota_bytes"`
	InDoubt     limit    `koanf:"quota_in_doubt"`
}

// platformSettings are the settings beside those of the server itself.
var platformSettings = []setting{
	{"tls_cert_file", "PEM file with the server's certificate: with tls_key_file the API is served over TLS, and changed files are followed", "", ""},
	{"tls_key_file", "PEM file with the certificate's key", "", ""},
	{"tls_client_ca_file", "PEM file with authorities: nobody connects without a certificate of theirs", "", ""},
	{"insecure_listen", "true: serve without TLS on an address that other machines reach, because something in front ends TLS", "false", "false"},
	{"journal", "folder for the list of unprotected runs, for this server alone, better not on the store's volume; off: consumers that are FAIL_OPEN fail closed; empty: DATA/journal with an embedded store, else off", "", ""},
	{"journal_size", "bound of that folder; full: fail closed", "64MiB", "64MiB"},
	{"seal_key_files", "files with keys that results are sealed with, as id=path and separated by commas, the first for new results; empty: results are not sealed", "", ""},
	{"log_hash_key_file", "file with 16 bytes or more that logs hash event IDs with, for 'claims hash'; empty: a key that nobody knows, new at each start", "", ""},
	{"quota_requests", "requests per second of a tenant that has no quota of its own; 0: without limit", "0", "0"},
	{"quota_items", "the same, claims and other items per second", "0", "0"},
	{"quota_live_leases", "the same, attempts that work at once", "0", "0"},
	{"quota_keys", "the same, retained keys", "0", "0"},
	{"quota_bytes", "the same, stored bytes", "0", "0"},
	{"quota_in_doubt", "the same, claims that wait for an operator", "0", "0"},
}

// limit is a quota; 0 is none.
type limit int64

func decodeLimit(from, to reflect.Type, value any) (any, error) {
	if to != reflect.TypeFor[limit]() || from.Kind() != reflect.String {
		return value, nil
	}
	n, err := strconv.ParseInt(value.(string), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("%q is not a number", value)
	}
	return limit(n), nil
}

// decodeBool reads what flags and variables say.
func decodeBool(from, to reflect.Type, value any) (any, error) {
	if to.Kind() != reflect.Bool || from.Kind() != reflect.String {
		return value, nil
	}
	b, err := strconv.ParseBool(value.(string))
	if err != nil {
		return nil, fmt.Errorf("%q is not true or false", value)
	}
	return b, nil
}

func (c *config) validatePlatform() error {
	var faults []error
	fault := func(key, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%s: %s", key, fmt.Sprintf(format, args...)))
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		fault("tls_cert_file", "and tls_key_file belong together")
	}
	if c.TLSClientCA != "" && c.TLSCert == "" {
		fault("tls_client_ca_file", "needs tls_cert_file and tls_key_file")
	}
	if c.JournalSize < journal.BytesMin {
		fault("journal_size", "is less than %d bytes", journal.BytesMin)
	}
	for key, n := range map[string]limit{
		"quota_requests": c.Requests, "quota_items": c.Items, "quota_live_leases": c.LiveLeases,
		"quota_keys": c.Keys, "quota_bytes": c.Bytes, "quota_in_doubt": c.InDoubt,
	} {
		if n < 0 {
			fault(key, "%d is negative", n)
		}
	}
	if _, err := sealFiles(c.SealKeys); err != nil {
		fault("seal_key_files", "%v", err)
	}
	if c.SealKeys != "" && len(c.Tenants) > 0 {
		fault("seal_key_files", "needs tenants in the store: those of a configuration file have no place for their keys")
	}
	return errors.Join(faults...)
}

// checkServing finds what a server cannot start with, before it has opened its
// store. What only serving needs is not checked for the commands that look after
// a store: they run with the same configuration, perhaps on another machine.
func (c *config) checkServing(sys *system) error {
	var faults []error
	if c.TLSCert == "" {
		if err := plainAllowed(c.Listen, c.Insecure); err != nil {
			faults = append(faults, fmt.Errorf("listen: %w", err))
		}
	} else if _, err := newTLSReloader(c.tlsFiles(), sys.now, slog.New(slog.DiscardHandler)); err != nil {
		faults = append(faults, err)
	}
	if _, err := c.keks(); err != nil {
		faults = append(faults, err)
	}
	if err := errors.Join(faults...); err != nil {
		return exit(exitUsage, fmt.Errorf("configuration: %w", err))
	}
	return nil
}

func (c *config) tlsFiles() tlsFiles {
	return tlsFiles{cert: c.TLSCert, key: c.TLSKey, clientCA: c.TLSClientCA}
}

// quotas are those of tenants that have none of their own.
func (c *config) quotas() quotas.Limits {
	return quotas.Limits{
		Requests: int64(c.Requests), Items: int64(c.Items), LiveLeases: int64(c.LiveLeases),
		Keys: int64(c.Keys), Bytes: int64(c.Bytes), InDoubt: int64(c.InDoubt),
	}
}

// journalDir is where unprotected runs are listed; "" for nowhere.
func (c *config) journalDir() string {
	switch {
	case c.Journal == journalOff, c.Journal == "" && c.target.sql():
		return ""
	case c.Journal == "":
		return filepath.Join(c.Data, "journal")
	}
	return c.Journal
}

// sealFile is a key-encryption key and where it is.
type sealFile struct{ id, path string }

func sealFiles(text string) (files []sealFile, err error) {
	if text == "" {
		return nil, nil
	}
	for _, part := range strings.Split(text, ",") {
		id, path, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok || id == "" || path == "" {
			return nil, fmt.Errorf("%q is not id=path", part)
		}
		if slices.ContainsFunc(files, func(f sealFile) bool { return f.id == id }) {
			return nil, fmt.Errorf("two keys have the ID %q; what is sealed names its key by that", id)
		}
		files = append(files, sealFile{id, path})
	}
	return files, nil
}

// keks reads the key-encryption keys, the one for new results first.
func (c *config) keks() ([]sealed.KEK, error) {
	files, err := sealFiles(c.SealKeys)
	if err != nil {
		return nil, err
	}
	var keks []sealed.KEK
	for _, f := range files {
		text, err := readPrivateFile(f.path)
		if err != nil {
			return nil, fmt.Errorf("seal_key_files: %w", err)
		}
		kek, err := sealed.ParseKEK(f.id, text)
		if err != nil {
			return nil, fmt.Errorf("seal_key_files: %s: %w", f.path, err)
		}
		keks = append(keks, kek)
	}
	return keks, nil
}

// privateFileBytesMax is more than any key has.
const privateFileBytesMax = 64 << 10

// readPrivateFile reads a file that nobody but its owner may change, and nobody
// but its owner and its group may read: that is how orchestrators mount secrets.
func readPrivateFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it is only read
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if mode := info.Mode().Perm(); mode&0o037 != 0 {
		return nil, fmt.Errorf("others can read or change %s (mode %04o); run: chmod 600 %s, and change the key if others were there",
			path, mode, shellWord(absolute(path)))
	}
	return io.ReadAll(io.LimitReader(f, privateFileBytesMax))
}

// warnOfOpenData tells that others can look into a folder that was there before.
// New ones are made for their owner alone.
func warnOfOpenData(log *slog.Logger, dir string) {
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm()&0o077 == 0 {
		return // whoever opens it says what is wrong with it
	}
	log.Warn("others can look into the data folder, where keys and results are; close it", "data", dir,
		"mode", fmt.Sprintf("%04o", info.Mode().Perm()), "run", "chmod 700 "+shellWord(absolute(dir)))
}
