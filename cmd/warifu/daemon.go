package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/warifu/warifu/server"
	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage/registry"
)

// daemon is one server process from its first file to its last.
type daemon struct {
	sys    *system
	config *config
	log    *slog.Logger
	// table is asked for once the store is open: whoever keeps a key in the data
	// folder is then, with an embedded store, the only process there.
	table func() (*tenant.Table, error)
	// prepare is told of what the store keeps beside claims, before anybody calls.
	prepare func(context.Context, registry.Registry) error
	// ready is told where the API listens, once it answers.
	ready func(address net.Addr) error
}

func newDaemon(sys *system, c *config) (*daemon, error) {
	level, err := c.level()
	if err != nil {
		return nil, exit(exitUsage, err)
	}
	return &daemon{
		sys: sys, config: c, log: redacted(sys.logger(c.LogFormat, level)),
		prepare: func(context.Context, registry.Registry) error { return nil },
	}, nil
}

// gcPercent is GOGC where the environment sets none. What a request allocates is
// gone with it; what stays is the store's memory, up to 256 MiB that hold no
// pointers, and its filter (the block cache lies outside the heap). Collecting
// half as often costs as much memory again and saves some of the CPU of a claim.
const gcPercent = 200

// run serves until the first SIGINT or SIGTERM and then ends in order: not
// ready, requests under way, loops, store. A second signal ends the process at
// once, which loses nothing that was acknowledged.
func (d *daemon) run(ctx context.Context) error {
	stop, forget := stopSignals(ctx, d.log)
	defer forget()

	public, err := listen(ctx, d.config.Listen)
	if err != nil {
		return err
	}
	defer closeQuietly(public)
	if d.sys.env("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	store, err := d.openStore(stop)
	if err != nil {
		return err
	}
	err = d.serve(stop, public, store)
	if closeErr := store.Close(); closeErr != nil {
		err = errors.Join(err, fmt.Errorf("close the store: %w", closeErr))
	}
	return err
}

// serve runs everything above an open store and returns when all of it ended.
func (d *daemon) serve(stop context.Context, public net.Listener, store *opened) error {
	table, err := d.table()
	if err != nil {
		return err
	}
	pageTokens, err := d.config.pageTokenKey()
	if err != nil {
		return err
	}
	if err := d.prepare(stop, store.registry); err != nil {
		return err
	}
	hashKey, err := d.config.eventHashKey()
	if err != nil {
		return exit(exitUsage, err)
	}
	t, err := d.openTelemetry(stop, store)
	if err != nil {
		return err
	}
	defer t.close()
	p, err := d.openPlatform(store, table)
	if err != nil {
		return err
	}
	if err := d.checkSeal(stop, store.registry, p.ring); err != nil {
		return errors.Join(err, p.close())
	}
	if err := t.watch(store, p); err != nil {
		return errors.Join(err, p.close())
	}
	srv, err := server.New(server.Config{
		Store: p.store, Arbiter: store.arbiter, Directory: p.directory, Platform: p.admin, Logger: d.log,
		Quotas: p.quotas, QuotaDefaults: d.config.quotas(), Journal: p.journal, Synced: p.syncer,
		Registry: t.registry, Tracer: t.tracer, Clock: d.sys.now, Version: readVersion().Version, PageTokenKey: pageTokens, EventHashKey: hashKey,
	})
	if err != nil {
		return errors.Join(fmt.Errorf("build the server: %w", err), p.close())
	}
	// What is above ends first: listeners, then the server's loop, which answers
	// what it has accepted, then the store's.
	ended := make(chan error, endingsMax)
	engine, loop, doors := newWorkers(ended), newWorkers(ended), newWorkers(ended)
	engine.start("store", store.run)
	loop.start("server", srv.Run)
	p.start(loop)
	public, err = d.secure(public, t)
	if err != nil {
		return errors.Join(err, loop.end(), engine.end(), p.close())
	}
	api := server.NewHTTPServer(srv.Handler())
	doors.start("listener", func(context.Context) error { return api.Serve(public) })
	metrics, err := d.openMetrics(stop, srv, doors)
	if err == nil {
		d.awaitReady(stop, srv)
		err = d.ready(public.Addr())
	}
	if err == nil {
		err = d.wait(stop, ended)
	}
	srv.Drain()
	if err == nil {
		d.keepServing(ended)
	}
	// Calls that wait for somebody else's attempt are answered as things stand.
	longPolls := time.AfterFunc(longPollGrace, loop.cancel)
	defer longPolls.Stop()
	err = errors.Join(err, d.shutdown(api, metrics))
	return errors.Join(err, doors.end(), loop.end(), p.close(), engine.end())
}

// secure puts TLS in front of a listener, where it is configured.
func (d *daemon) secure(l net.Listener, t *telemetry) (net.Listener, error) {
	if d.config.TLSCert == "" {
		return l, nil
	}
	r, err := newTLSReloader(tlsFiles{cert: d.config.TLSCert, key: d.config.TLSKey, clientCA: d.config.TLSClientCA}, d.sys.now, d.log)
	if err != nil {
		return nil, err
	}
	t.tls.Store(r)
	return tls.NewListener(l, r.config()), nil
}

// longPollGrace is what calls under way have before the server's loop ends.
const longPollGrace = time.Second

// How long a start waits to be ready, and how often it looks.
const (
	readyWait  = 10 * time.Second
	readyPause = 5 * time.Millisecond
)

// awaitReady returns when claims are answered, so that what is printed next is
// true. A server that stays unready, for want of disk space for one, is left
// running: it may recover, and completions are still taken.
func (d *daemon) awaitReady(ctx context.Context, srv *server.Server) {
	ctx, cancel := context.WithTimeout(ctx, readyWait)
	defer cancel()
	for srv.Ready(ctx) != nil {
		if pause(ctx, readyPause) != nil {
			d.log.Warn("not ready yet", "checks", srv.Ready(context.WithoutCancel(ctx)))
			return
		}
	}
}

// openMetrics serves /metrics on a listener of its own; nil when it is off.
func (d *daemon) openMetrics(ctx context.Context, srv *server.Server, doors *workers) (*http.Server, error) {
	if d.config.MetricsListen == "" {
		return nil, nil
	}
	listener, err := listen(ctx, d.config.MetricsListen)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", srv.MetricsHandler())
	if isLoopback(listener.Addr()) { // profiles show memory: never to a network
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	h := &http.Server{Handler: mux, ReadHeaderTimeout: metricsHeaderTimeout}
	doors.start("metrics listener", func(context.Context) error { return h.Serve(listener) })
	d.log.Info("metrics", "listen", listener.Addr().String())
	return h, nil
}

const metricsHeaderTimeout = 5 * time.Second

// wait returns nil when the process was asked to stop, and what went wrong
// when a part of it ended by itself.
func (d *daemon) wait(stop context.Context, ended <-chan error) error {
	select {
	case <-stop.Done():
		d.log.Info("stopping", "cause", context.Cause(stop).Error())
		return nil
	case err := <-ended:
		return err
	}
}

// keepServing gives whoever looks at /readyz the time to send requests
// elsewhere, while requests that still come are answered.
func (d *daemon) keepServing(ended <-chan error) {
	timer := time.NewTimer(d.config.DrainDelay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case err := <-ended:
		d.log.Error("ended while draining", "error", err)
	}
}

// shutdown lets requests under way finish. Those that take longer are cut off:
// their clients resend with the same attempt ID.
func (d *daemon) shutdown(servers ...*http.Server) error {
	ctx, cancel := context.WithTimeout(context.Background(), d.config.ShutdownTimeout)
	defer cancel()
	var faults []error
	for _, s := range servers {
		if s == nil {
			continue
		}
		err := s.Shutdown(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			d.log.Warn("requests were cut off", "after", d.config.ShutdownTimeout)
			err = s.Close()
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("shut down: %w", err))
		}
	}
	return errors.Join(faults...)
}

// stopSignals returns a context that ends with the first signal. The second
// one ends the process.
func stopSignals(ctx context.Context, log *slog.Logger) (context.Context, func()) {
	stop, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if sig, ok := <-signals; ok {
			cancel(fmt.Errorf("signal %s", sig))
		}
		if sig, ok := <-signals; ok {
			log.Warn("stopping at once", "signal", sig.String())
			os.Exit(exitSignalled + int(sig.(syscall.Signal)))
		}
	}()
	return stop, func() {
		signal.Stop(signals)
		close(signals)
		<-done
		cancel(nil)
	}
}

// listen says what to do when an address cannot be had.
func listen(ctx context.Context, address string) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%s is in use, perhaps by another warifu; choose another with --listen: %w", address, err)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return l, nil
}

func isLoopback(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// closeQuietly closes a listener that Serve has usually closed before.
func closeQuietly(l net.Listener) { _ = l.Close() }
