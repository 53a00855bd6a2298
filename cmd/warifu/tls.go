package main

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// tlsFiles name what a TLS listener needs. clientCA is optional: with it,
// nobody gets in without a certificate that it signed.
type tlsFiles struct {
	cert     string // PEM, the server's certificate first
	key      string // PEM
	clientCA string // PEM, one or more
}

// tlsPoll is how long changed files may go unnoticed. They are looked at when
// somebody connects.
const tlsPoll = 10 * time.Second

// tlsExpirySoon is how long before its end a certificate is warned about.
const tlsExpirySoon = 7 * 24 * time.Hour

// tlsReloader serves TLS with the files as they are now. A pair that cannot be
// used leaves the old one in force, and is logged once. Connections that stand
// keep what they began with, client certificates included. It is safe for
// concurrent use.
//
// To wire it: wrap the listener in tls.NewListener(l, r.config()) and give it to
// http.Server.Serve, which then speaks HTTP/2 as well.
type tlsReloader struct {
	files   tlsFiles
	now     func() time.Time
	log     *slog.Logger
	current atomic.Pointer[tlsLoaded]
	mu      struct {
		sync.Mutex
		checked time.Time
		refused [sha256.Size]byte // what was logged as broken last
		fault   string            // and how
		warned  [sha256.Size]byte // whose expiry was logged
	}
}

// tlsLoaded is one state of the files.
type tlsLoaded struct {
	config *tls.Config
	sum    [sha256.Size]byte // of all files
	end    time.Time
}

// newTLSReloader reads the files; at a start, what cannot be used is an error.
// Time is that of now, for the poll and for whether certificates are valid.
func newTLSReloader(files tlsFiles, now func() time.Time, log *slog.Logger) (*tlsReloader, error) {
	if files.cert == "" || files.key == "" {
		return nil, errors.New("TLS needs both a certificate file and a key file")
	}
	r := &tlsReloader{files: files, now: now, log: log}
	loaded, _, err := r.load()
	if err != nil {
		return nil, fmt.Errorf("TLS: %w", err)
	}
	r.current.Store(loaded)
	r.mu.checked = now()
	r.warnExpiry(loaded)
	return r, nil
}

// config is for a listener; every handshake asks for the files' state.
func (r *tlsReloader) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: tlsProtocols(), Time: r.now,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			r.check()
			return r.current.Load().config, nil
		},
	}
}

// expires is when the certificate in force ends, for a metric.
func (r *tlsReloader) expires() time.Time { return r.current.Load().end }

// check looks at the files unless somebody does or did within tlsPoll.
func (r *tlsReloader) check() {
	if !r.mu.TryLock() {
		return
	}
	defer r.mu.Unlock()
	now := r.now()
	if since := now.Sub(r.mu.checked); since >= 0 && since < tlsPoll {
		return
	}
	r.mu.checked = now
	loaded, sum, err := r.load()
	switch old := r.current.Load(); {
	case err != nil:
		if sum != r.mu.refused || err.Error() != r.mu.fault {
			r.log.Error("changed TLS files cannot be used; the old ones stay in force", "error", err, "expires", old.end)
		}
		r.mu.refused, r.mu.fault = sum, err.Error()
		r.warnExpiry(old)
	case sum != old.sum:
		r.current.Store(loaded)
		r.log.Info("TLS files loaded", "expires", loaded.end)
		fallthrough
	default:
		r.mu.refused, r.mu.fault = [sha256.Size]byte{}, ""
		r.warnExpiry(r.current.Load())
	}
}

// warnExpiry logs once for each certificate; mu is held, or nobody else is there.
func (r *tlsReloader) warnExpiry(l *tlsLoaded) {
	if r.now().Before(l.end.Add(-tlsExpirySoon)) || r.mu.warned == l.sum {
		return
	}
	r.mu.warned = l.sum
	r.log.Warn("the TLS certificate ends soon", "file", r.files.cert, "expires", l.end)
}

// load reads all files and checks that they belong together and are valid now.
// Their content is compared, not their times: those can be kept by whoever
// replaces a file, and links be switched. What is in force already is not
// refused for having expired meanwhile: there is nothing to go back to.
func (r *tlsReloader) load() (*tlsLoaded, [sha256.Size]byte, error) {
	contents, sum, err := readFiles(r.files.cert, r.files.key, r.files.clientCA)
	if err != nil {
		return nil, sum, err
	}
	if old := r.current.Load(); old != nil && old.sum == sum {
		return old, sum, nil
	}
	pair, err := keyPair(r.files.cert, r.files.key, contents[0], contents[1], r.now())
	if err != nil {
		return nil, sum, err
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: tlsProtocols(), Time: r.now,
		Certificates: []tls.Certificate{pair},
	}
	if r.files.clientCA != "" {
		if config.ClientCAs, err = certPool(r.files.clientCA, contents[2]); err != nil {
			return nil, sum, err
		}
		// Also for a session that is resumed: the library asks the CAs of now.
		config.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return &tlsLoaded{config: config, sum: sum, end: pair.Leaf.NotAfter}, sum, nil
}

func tlsProtocols() []string { return []string{"h2", "http/1.1"} }

// readFiles returns the contents, none for an empty path, and their sum: also
// with an error, so that a fault is told from the next one.
func readFiles(paths ...string) (contents [][]byte, sum [sha256.Size]byte, err error) {
	h := sha256.New()
	for _, path := range paths {
		var b []byte
		if path != "" {
			var fault error
			if b, fault = os.ReadFile(path); fault != nil {
				err = errors.Join(err, fault)
			}
		}
		contents = append(contents, b)
		each := sha256.Sum256(b)
		h.Write(each[:])
	}
	return contents, [sha256.Size]byte(h.Sum(nil)), err
}

// keyPair checks a certificate and its key, and that it is valid now: nobody
// would accept it otherwise, and say so less clearly.
func keyPair(certPath, keyPath string, cert, key []byte, now time.Time) (tls.Certificate, error) {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return pair, fmt.Errorf("certificate %s with key %s: %w", certPath, keyPath, err)
	}
	if now.After(pair.Leaf.NotAfter) {
		return pair, fmt.Errorf("certificate %s expired at %s", certPath, pair.Leaf.NotAfter.Format(time.RFC3339))
	}
	if now.Before(pair.Leaf.NotBefore) {
		return pair, fmt.Errorf("certificate %s is not valid before %s", certPath, pair.Leaf.NotBefore.Format(time.RFC3339))
	}
	return pair, nil
}

func certPool(path string, pem []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !bytes.Contains(pem, []byte("-----BEGIN CERTIFICATE-----")) || !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate in PEM form", path)
	}
	return pool, nil
}

// clientTLSFiles are what a client may need. All are optional.
type clientTLSFiles struct {
	ca         string // PEM: who signs servers, in place of the system's list
	cert, key  string // PEM: who we are, for servers that ask
	serverName string // what the server's certificate says, where the URL says otherwise
}

// clientTLS reads the files once: a command is short.
func clientTLS(files clientTLSFiles, now func() time.Time) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: files.serverName, Time: now}
	if (files.cert == "") != (files.key == "") {
		return nil, errors.New("TLS: a client certificate needs both its file and its key's")
	}
	contents, _, err := readFiles(files.ca, files.cert, files.key)
	if err == nil && files.ca != "" {
		config.RootCAs, err = certPool(files.ca, contents[0])
	}
	if err == nil && files.cert != "" {
		var pair tls.Certificate
		pair, err = keyPair(files.cert, files.key, contents[1], contents[2], now())
		config.Certificates = []tls.Certificate{pair}
	}
	if err != nil {
		return nil, fmt.Errorf("TLS: %w", err)
	}
	return config, nil
}

// plainAllowed refuses to listen without TLS where others could listen in,
// unless it was asked for by name.
func plainAllowed(address string, insecure bool) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%q is not host:port", address)
	}
	host, _, _ = strings.Cut(host, "%") // an IPv6 zone
	if insecure || strings.EqualFold(host, "localhost") || net.ParseIP(host).IsLoopback() {
		return nil
	}
	return fmt.Errorf("%s can be reached from other machines, and without TLS API keys and events would cross the network in the clear: "+
		"set tls_cert_file and tls_key_file, or listen on 127.0.0.1, or, where something in front of this server ends TLS, say --insecure-listen", address)
}
