package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warifu/warifu/server"
)

// authority signs certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

var tlsStart = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, key: newECKey(t)}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: rand.Text()}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: tlsStart.Add(-time.Hour), NotAfter: tlsStart.AddDate(10, 0, 0),
	}
	a.cert, a.pem = a.make(template, template, &a.key.PublicKey)
	return a
}

func newECKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *authority) make(template, parent *x509.Certificate, public *ecdsa.PublicKey) (*x509.Certificate, []byte) {
	a.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// issue returns a certificate for 127.0.0.1, valid from an hour ago, for d.
func (a *authority) issue(name string, d time.Duration) (cert, key []byte) {
	a.t.Helper()
	private := newECKey(a.t)
	_, cert = a.make(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: tlsStart.Add(-time.Hour), NotAfter: tlsStart.Add(d),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, &private.PublicKey)
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// tlsRig is a real listener with the files of a folder and a clock to set.
type tlsRig struct {
	*tlsReloader
	t       *testing.T
	ca      *authority
	files   tlsFiles
	address string
	mu      sync.Mutex
	time    time.Time
	said    bytes.Buffer
	served  int
}

const year = 365 * 24 * time.Hour

func (r *tlsRig) now() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.time
}

func (r *tlsRig) advance(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.time = r.time.Add(d)
}

func (r *tlsRig) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.said.Write(b)
}

func (r *tlsRig) lines(text string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Count(r.said.String(), text)
}

func (r *tlsRig) logger() *slog.Logger { return slog.New(slog.NewTextHandler(r, nil)) }

// newTLSRig has the files of a server named "first".
func newTLSRig(t *testing.T, clientCA *authority) *tlsRig {
	t.Helper()
	r := &tlsRig{t: t, ca: newAuthority(t), time: tlsStart}
	folder := t.TempDir()
	r.files = tlsFiles{cert: filepath.Join(folder, "cert.pem"), key: filepath.Join(folder, "key.pem")}
	if clientCA != nil {
		r.files.clientCA = filepath.Join(folder, "ca.pem")
		r.write(r.files.clientCA, clientCA.pem)
	}
	r.writePair(r.ca.issue("first", year))
	return r
}

func (r *tlsRig) write(path string, b []byte) {
	r.t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		r.t.Fatal(err)
	}
}

func (r *tlsRig) writePair(cert, key []byte) {
	r.t.Helper()
	r.write(r.files.cert, cert)
	r.write(r.files.key, key)
}

func (r *tlsRig) start() {
	r.t.Helper()
	var err error
	if r.tlsReloader, err = newTLSReloader(r.files, r.now, r.logger()); err != nil {
		r.t.Fatal(err)
	}
	plain, err := listen(r.t.Context(), "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	r.address = plain.Addr().String()
	srv := server.NewHTTPServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.served++
		_, _ = io.WriteString(w, req.Proto)
	}))
	srv.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(tls.NewListener(plain, r.config())) }()
	r.t.Cleanup(func() {
		if err := srv.Close(); err != nil {
			r.t.Error(err)
		}
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			r.t.Error(err)
		}
	})
}

// client trusts the rig's authority and shows files' certificate, if any.
func (r *tlsRig) client(edit func(*clientTLSFiles)) *http.Client {
	r.t.Helper()
	files := clientTLSFiles{ca: filepath.Join(r.t.TempDir(), "server-ca.pem")}
	r.write(files.ca, r.ca.pem)
	if edit != nil {
		edit(&files)
	}
	config, err := clientTLS(files, r.now)
	if err != nil {
		r.t.Fatal(err)
	}
	config.ClientSessionCache = tls.NewLRUClientSessionCache(4)
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
	r.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute}
}

// ask returns the protocol that was spoken and the server's name.
func (r *tlsRig) ask(c *http.Client) (protocol, name string, err error) {
	protocol, state, err := r.askState(c)
	if err == nil {
		name = state.PeerCertificates[0].Subject.CommonName
	}
	return protocol, name, err
}

func (r *tlsRig) askState(c *http.Client) (protocol string, state *tls.ConnectionState, err error) {
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, "https://"+r.address, nil)
	if err != nil {
		return "", nil, err
	}
	res, err := c.Do(req)
	if err != nil {
		return "", nil, err
	}
	b, err := io.ReadAll(res.Body)
	return string(b), res.TLS, errors.Join(err, res.Body.Close())
}

func (r *tlsRig) wantName(c *http.Client, want string) {
	r.t.Helper()
	protocol, name, err := r.ask(c)
	if err != nil || protocol != "HTTP/2.0" || name != want {
		r.t.Errorf("%q over %q, %v; want %q over HTTP/2.0", name, protocol, err, want)
	}
}

// TestTLSReload: a new pair is taken within tlsPoll, connections that stand
// stay, and a broken pair changes nothing and is logged once.
func TestTLSReload(t *testing.T) {
	t.Parallel()
	r := newTLSRig(t, nil)
	r.start()
	standing := r.client(nil)
	r.wantName(standing, "first")
	r.writePair(r.ca.issue("second", 2*year))
	r.advance(tlsPoll - time.Nanosecond)
	r.wantName(r.client(nil), "first")
	r.advance(time.Nanosecond)
	r.wantName(r.client(nil), "second")
	r.wantName(standing, "first")
	if want := tlsStart.Add(2 * year); !r.expires().Equal(want) {
		t.Errorf("expires %v, want %v", r.expires(), want)
	}
	third, thirdKey := r.ca.issue("third", year)
	expired, expiredKey := r.ca.issue("expired", -time.Minute)
	broken := []struct{ cert, key []byte }{
		{third, expiredKey}, // half replaced
		{third[:len(third)/2], thirdKey},
		{nil, nil},
		{expired, expiredKey},
	}
	for i, pair := range broken {
		r.writePair(pair.cert, pair.key)
		for range 3 {
			r.advance(tlsPoll)
			r.wantName(r.client(nil), "second")
		}
		if n := r.lines("level=ERROR"); n != i+1 {
			t.Errorf("broken pair %d: %d lines, want %d", i, n, i+1)
		}
	}
	if err := os.Remove(r.files.key); err != nil {
		t.Fatal(err)
	}
	r.advance(tlsPoll)
	r.wantName(r.client(nil), "second")
	r.writePair(third, thirdKey)
	r.advance(tlsPoll)
	r.wantName(r.client(nil), "third")
	r.wantName(standing, "first")
}

// TestTLSStart: what cannot be used is refused at the start, and says which
// file it is about.
func TestTLSStart(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(r *tlsRig) (want string){
		"no cert":    func(r *tlsRig) string { r.files.cert = ""; return "both" },
		"no key":     func(r *tlsRig) string { r.files.key = ""; return "both" },
		"no file":    func(r *tlsRig) string { r.files.key += ".gone"; return r.files.key },
		"not a pair": func(r *tlsRig) string { r.write(r.files.key, second(r.ca.issue("x", year))); return r.files.key },
		"expired": func(r *tlsRig) string {
			r.writePair(r.ca.issue("x", -time.Second))
			return "expired at 2026-01-02T03:04:04Z"
		},
		"too early":      func(r *tlsRig) string { r.advance(-2 * time.Hour); return "not valid before" },
		"no CA file":     func(r *tlsRig) string { r.files.clientCA = r.files.key + ".gone"; return r.files.clientCA },
		"key in CA file": func(r *tlsRig) string { r.files.clientCA = r.files.key; return "no certificate" },
	} {
		r := newTLSRig(t, nil)
		want := edit(r)
		if _, err := newTLSReloader(r.files, r.now, r.logger()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

func second(_, b []byte) []byte { return b }

// TestTLSExpiry: a certificate that ends soon is warned about once, and one
// that ended while it was in force is not taken away: nothing else is there.
func TestTLSExpiry(t *testing.T) {
	t.Parallel()
	r := newTLSRig(t, nil)
	r.writePair(r.ca.issue("short", 8*24*time.Hour))
	r.start()
	for _, step := range []struct {
		advance time.Duration
		lines   int
	}{{0, 0}, {24*time.Hour - tlsPoll, 0}, {tlsPoll, 1}, {24 * time.Hour, 1}} {
		r.advance(step.advance)
		r.wantName(r.client(nil), "short")
		if n := r.lines("ends soon"); n != step.lines {
			t.Errorf("after %v: %d lines, want %d", step.advance, n, step.lines)
		}
	}
	r.advance(year)
	if _, _, err := r.ask(r.client(nil)); !errors.As(err, new(*tls.CertificateVerificationError)) {
		t.Errorf("a client takes an expired certificate: %v", err)
	}
	if r.lines("level=ERROR") > 0 {
		t.Error("what is in force was refused")
	}
}

// TestMutualTLS: nobody gets in without a certificate of the client CA, and a
// CA that is taken away counts from the next connection, resumed or not.
func TestMutualTLS(t *testing.T) {
	t.Parallel()
	clients, others := newAuthority(t), newAuthority(t)
	r := newTLSRig(t, clients)
	r.start()
	as := func(a *authority, d time.Duration) *http.Client {
		return r.client(func(f *clientTLSFiles) {
			f.cert, f.key = f.ca+".cert", f.ca+".key"
			cert, key := a.issue("caller", d)
			r.write(f.cert, cert)
			r.write(f.key, key)
		})
	}
	for name, c := range map[string]*http.Client{"none": r.client(nil), "another CA's": as(others, year), "the server CA's": as(r.ca, year)} {
		if _, _, err := r.ask(c); err == nil {
			t.Errorf("let in with %s certificate", name)
		}
	}
	soon := as(clients, time.Hour)
	known := as(clients, year)
	if r.served != 0 {
		t.Errorf("%d requests reached the handler", r.served)
	}
	r.wantName(known, "first")
	known.CloseIdleConnections()
	if _, state, err := r.askState(known); err != nil || !state.DidResume {
		t.Errorf("known again: %v; without a resumed session the rest shows little", err)
	}
	r.advance(2 * time.Hour)
	if _, _, err := r.ask(soon); err == nil {
		t.Error("let in with an expired certificate")
	}
	known.CloseIdleConnections()
	r.write(r.files.clientCA, others.pem)
	r.advance(tlsPoll)
	if _, _, err := r.ask(known); err == nil {
		t.Error("let in by a CA that was taken away")
	}
	r.wantName(as(others, year), "first")
}

// TestTLSClient: a server of another authority or name is refused, and so are
// files that cannot be used.
func TestTLSClient(t *testing.T) {
	t.Parallel()
	r := newTLSRig(t, nil)
	r.start()
	stranger := r.client(func(f *clientTLSFiles) { r.write(f.ca, newAuthority(t).pem) })
	system := r.client(func(f *clientTLSFiles) { f.ca = "" })
	misnamed := r.client(func(f *clientTLSFiles) { f.serverName = "warifu.example" })
	for name, c := range map[string]*http.Client{"another CA": stranger, "the system's list": system, "another name": misnamed} {
		if _, _, err := r.ask(c); !errors.As(err, new(*tls.CertificateVerificationError)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	cert, key := r.ca.issue("x", -time.Second)
	old := tlsFiles{cert: r.files.cert + ".old", key: r.files.key + ".old"}
	r.write(old.cert, cert)
	r.write(old.key, key)
	for want, files := range map[string]clientTLSFiles{
		"both":           {cert: r.files.cert},
		"no certificate": {ca: r.files.key},
		"no such file":   {ca: r.files.cert + ".gone"},
		"expired":        {cert: old.cert, key: old.key},
	} {
		if _, err := clientTLS(files, r.now); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestTLSOnly: a TLS port serves nothing in the clear, and nothing below 1.2.
func TestTLSOnly(t *testing.T) {
	t.Parallel()
	r := newTLSRig(t, nil)
	r.start()
	for name, hello := range map[string]string{
		"HTTP/1.1": "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"HTTP/2":   "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
	} {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", r.address)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, hello); err != nil {
			t.Fatal(err)
		}
		answer, _ := io.ReadAll(bufio.NewReader(conn)) // reset or ended: both are refusals
		if bytes.Contains(answer, []byte(" 200 ")) || (len(answer) > 0 && !bytes.HasPrefix(answer, []byte("HTTP/1.0 400"))) {
			t.Errorf("%s: answered %q", name, answer)
		}
		_ = conn.Close()
	}
	if r.served > 0 {
		t.Errorf("%d requests in the clear reached the handler", r.served)
	}
	for version, ok := range map[uint16]bool{tls.VersionTLS11: false, tls.VersionTLS12: true, tls.VersionTLS13: true} {
		pool := x509.NewCertPool()
		pool.AddCert(r.ca.cert)
		dialer := tls.Dialer{Config: &tls.Config{RootCAs: pool, MinVersion: version, MaxVersion: version, Time: r.now}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		conn, err := dialer.DialContext(ctx, "tcp", r.address)
		cancel()
		if (err == nil) != ok {
			t.Errorf("version %x: %v", version, err)
		}
		if err == nil {
			_ = conn.Close()
		}
	}
}

// TestPlainAllowed: without TLS only this machine may call, unless somebody
// said so by name.
func TestPlainAllowed(t *testing.T) {
	t.Parallel()
	for address, ok := range map[string]bool{
		"127.0.0.1:8080": true, "127.8.9.1:0": true, "[::1]:8080": true, "[::1%lo]:1": true, "localhost:8080": true, "LOCALHOST:8080": true,
		"[::ffff:127.0.0.1]:80": true,
		":8080":                 false, "0.0.0.0:8080": false, "[::]:8080": false, "10.0.0.1:80": false, "192.168.1.2:80": false,
		"localhost.example:80": false, "127.0.0.1.example:80": false, "warifu:80": false, "[fe80::1%eth0]:80": false,
	} {
		err := plainAllowed(address, false)
		if (err == nil) != ok {
			t.Errorf("%s: %v", address, err)
		}
		if err != nil && (!strings.Contains(err.Error(), "--insecure-listen") || !strings.Contains(err.Error(), "tls_cert_file")) {
			t.Errorf("%s does not say what to do: %v", address, err)
		}
		if err := plainAllowed(address, true); err != nil {
			t.Errorf("%s, asked for by name: %v", address, err)
		}
	}
	if plainAllowed("127.0.0.1", true) == nil {
		t.Error("no port, and allowed")
	}
}
