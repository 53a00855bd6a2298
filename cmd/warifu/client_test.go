package main

import (
	"crypto/tls"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

// askingServer has a certificate and asks callers for theirs.
type askingServer struct {
	url string
	mu  struct {
		sync.Mutex
		callers []string // names in certificates; "" for none
	}
}

func newAskingServer(t *testing.T, ca *authority, handler http.Handler) *askingServer {
	t.Helper()
	s := &askingServer{}
	pair, err := tls.X509KeyPair(ca.issue("server", 100*year))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := ""
		if certs := r.TLS.PeerCertificates; len(certs) > 0 {
			name = certs[0].Subject.CommonName
		}
		s.mu.Lock()
		s.mu.callers = append(s.mu.callers, name)
		s.mu.Unlock()
		handler.ServeHTTP(w, r)
	}))
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert}
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes that are meant to fail
	server.StartTLS()
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

func (s *askingServer) got() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.mu.callers
	s.mu.callers = nil
	return all
}

// TestContextStaysWithItsServer: neither the authorities nor the certificate of a
// context are for another server than its own.
func TestContextStaysWithItsServer(t *testing.T) {
	t.Parallel()
	f, key := desk(t)
	ca := newAuthority(t)
	own, other := newAskingServer(t, ca, f.mux), newAskingServer(t, ca, f.mux)
	cert, private := ca.issue("ann", 100*year)
	caFile, byFlag := f.keyFile(string(ca.pem)), f.keyFile(key)
	f.pipe(key, "context", "add", "prod", "--url", own.url, "--api-key-stdin", "--ca-file", caFile,
		"--client-cert-file", f.keyFile(string(cert)), "--client-key-file", f.keyFile(string(private))).want(t, exitOK, "", "")
	elsewhere := []string{"usage", "--url", other.url, "--api-key-file", byFlag}
	f.do("usage").want(t, exitOK, "retained_keys", "")
	f.do("usage", "--url", own.url).want(t, exitOK, "retained_keys", "")
	if got := own.got(); !slices.Equal(got, []string{"ann", "ann"}) {
		t.Errorf("its own server was asked by %q", got)
	}
	f.do(elsewhere...).want(t, exitUnavailable, "", "certificate")
	f.do(append(elsewhere, "--context", "prod")...).want(t, exitUnavailable, "", "certificate")
	f.do(append(elsewhere, "--ca-file", caFile)...).want(t, exitOK, "retained_keys", "")
	if got := other.got(); !slices.Equal(got, []string{""}) {
		t.Errorf("another server was asked by %q", got)
	}
}

// TestKeyOfVariable: who is refused is told what to do.
func TestKeyOfVariable(t *testing.T) {
	t.Parallel()
	f, key := desk(t)
	f.pipe(key, "context", "add", "prod", "--url", f.url, "--api-key-stdin").want(t, exitOK, "", "")
	f.env = append(f.env, "WARIFU_API_KEY="+fakeKey)
	refused := f.do("usage")
	for _, says := range []string{f.url, "set WARIFU_URL or give --url", "unset WARIFU_API_KEY or give --context prod"} {
		refused.want(t, exitDenied, "", says)
	}
	if asked := f.methods(); asked != "" {
		t.Errorf("%s was asked", asked)
	}
	f.do("usage", "--context", "prod").want(t, exitOK, "retained_keys", "")
	f.do("context", "remove", "prod").want(t, exitOK, "", "")
	f.do("usage", "--url", f.url).want(t, exitOK, "retained_keys", "")
	if all := f.got(); len(all) != 2 || all[0].key != key || all[1].key != fakeKey {
		t.Errorf("asked with %v", all)
	}
}

// TestKeyOfVariableAndKeylessContext: --context goes before WARIFU_URL, so that
// variable does not say that the key is for the context's server.
func TestKeyOfVariableAndKeylessContext(t *testing.T) {
	t.Parallel()
	f, _ := desk(t)
	if err := os.MkdirAll(filepath.Dir(f.file()), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.file(), []byte("contexts: {prod: {url: \""+f.url+"\"}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.env = append(f.env, "WARIFU_API_KEY="+fakeKey, "WARIFU_URL=http://127.0.0.1:1")
	f.do("usage", "--context", "prod").want(t, exitDenied, "", "give --url")
	if asked := f.methods(); asked != "" {
		t.Errorf("%s was asked", asked)
	}
	f.do("usage", "--context", "prod", "--url", f.url).want(t, exitOK, "retained_keys", "")
}
