package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	connectv1 "connectrpc.com/connect"
	"connectrpc.com/grpchealth"

	"github.com/warifu/warifu/api/gen/warifu/v1/warifuv1connect"
)

// readyTimeout bounds what a readiness check may ask of the store.
const readyTimeout = 2 * time.Second

// directoryAgeMax is from when on calls should go to servers that know more: keys
// that are revoked in the meantime still work here.
const directoryAgeMax = time.Minute

// check is one condition of readiness. Its error is for the log; callers are
// told only that it failed.
type check struct {
	name string
	err  error
}

// checks says what readiness depends on. Liveness depends on nothing: a
// restart repairs neither a full disk nor a store that is away.
func (s *Server) checks(ctx context.Context) []check {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	out := []check{{name: "arbiter"}, {name: "draining"}, {name: "store", err: s.store.Ready(ctx)}}
	if s.synced != nil {
		err := s.synced.Ready()
		if age := s.synced.Age(); err == nil && age > directoryAgeMax {
			err = fmt.Errorf("what is known of tenants and keys is %v old", age)
		}
		out = append(out, check{name: "directory", err: err})
	}
	if !s.running() {
		out[0].err = errors.New("the arbiter does not run")
	}
	if s.draining.Load() {
		out[1].err = errors.New("the server is draining")
	}
	return out
}

// ready reports whether all checks pass, and remembers that they once did. A
// change is logged with its reasons; probers can ask as often as they like.
func (s *Server) ready(ctx context.Context) (bool, []check) {
	all := s.checks(ctx)
	verdict, level, attrs := isReady, slog.LevelInfo, []slog.Attr(nil)
	for i := range all {
		if all[i].err != nil {
			verdict, level = notReady, slog.LevelWarn
			attrs = append(attrs, slog.String(all[i].name, all[i].err.Error()))
		}
	}
	if s.verdict.Swap(verdict) != verdict {
		s.logger.LogAttrs(ctx, level, "readiness changed", append(attrs, slog.Bool("ready", verdict == isReady))...)
	}
	if verdict == isReady {
		s.started.Store(true)
	}
	return verdict == isReady, all
}

// Ready returns why claims should not be sent here, nil when they may be.
func (s *Server) Ready(ctx context.Context) error {
	_, all := s.ready(ctx)
	var faults []error
	for i := range all {
		if all[i].err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", all[i].name, all[i].err))
		}
	}
	return errors.Join(faults...)
}

// Verdicts of a readiness check; 0 is none yet.
const (
	isReady int32 = iota + 1
	notReady
)

// livez says that the process answers.
func (s *Server) livez(w http.ResponseWriter, _ *http.Request) { writeHealth(w, true, "ok\n") }

// readyz says whether claims should be sent here; ?verbose lists the checks.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	ok, all := s.ready(r.Context())
	report(w, r, ok, all)
}

// startupz says whether the server was ready once.
func (s *Server) startupz(w http.ResponseWriter, r *http.Request) {
	ok, all := s.started.Load(), []check(nil)
	if !ok {
		ok, all = s.ready(r.Context())
	}
	report(w, r, ok, all)
}

func report(w http.ResponseWriter, r *http.Request, ok bool, all []check) {
	var text strings.Builder
	if r.URL.Query().Has("verbose") {
		for i := range all {
			if all[i].err == nil {
				fmt.Fprintf(&text, "[+] %s ok\n", all[i].name)
				continue
			}
			fmt.Fprintf(&text, "[-] %s failed: the reason is in the log\n", all[i].name)
		}
	}
	if ok {
		text.WriteString("ok\n")
	} else {
		text.WriteString("not ready\n")
	}
	writeHealth(w, ok, text.String())
}

func writeHealth(w http.ResponseWriter, ok bool, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if !ok {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = w.Write([]byte(text)) // the prober is gone: nobody to tell
}

// healthServices are the names that gRPC health knows, beside "" for all.
var healthServices = map[string]bool{
	"": true, warifuv1connect.ClaimServiceName: true, warifuv1connect.ClaimAdminServiceName: true,
	warifuv1connect.TenantAdminServiceName: true, warifuv1connect.PlatformAdminServiceName: true,
}

// grpcHealth answers gRPC health checks by readiness.
type grpcHealth struct{ server *Server }

// Check implements grpchealth.Checker.
func (h grpcHealth) Check(ctx context.Context, r *grpchealth.CheckRequest) (*grpchealth.CheckResponse, error) {
	if !healthServices[r.Service] {
		return nil, connectv1.NewError(connectv1.CodeNotFound, errors.New("unknown service"))
	}
	if ok, _ := h.server.ready(ctx); !ok {
		return &grpchealth.CheckResponse{Status: grpchealth.StatusNotServing}, nil
	}
	return &grpchealth.CheckResponse{Status: grpchealth.StatusServing}, nil
}
