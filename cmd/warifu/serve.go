package main

import (
	"net"

	"github.com/spf13/cobra"

	"github.com/warifu/warifu/server/tenant"
)

func newServe(sys *system) *cobra.Command {
	cmd := &cobra.Command{
		Use: "serve", Short: "Serve the tenants of a store", GroupID: groupServer, Args: cobra.NoArgs,
		Long: `Serves the tenants that the store knows. 'warifu keys bootstrap' makes the first
key of a new store, and with that 'warifu tenants create' and 'warifu keys create'
make the others; they are in force within 5 s on every server of the store.

Settings come from defaults, a file, WARIFU_* variables and flags, each
overriding the one before; unknown names are errors. Tenants may also stand in
the file, for an installation that nobody administers while it runs; they go
before those of the store and cannot be changed by the API ('warifu keys new'
makes the key lines):

  listen: 127.0.0.1:8080
  data: /var/lib/warifu
  tenants:
    - id: 1                    # never reused, not even for the same name
      name: shop
      strict: true             # only declared consumers
      keys:
        - id: "3v8kq2m4x7np5rwt"
          secret_sha256: "64 hexadecimal digits"
          scopes: [claim, read]
      consumers:
        - name: inventory
          redelivery_window: 4h
          lease_default: 30s
          on_lease_loss: REGRANT      # or HOLD
          on_unavailable: FAIL_CLOSED # or FAIL_OPEN

In place of data, 'store: postgres://…' or 'store: cockroach://…' names a database
that any number of servers share; store_file names a file with that URL. Its
schema is made by 'warifu migrate up': a server that finds an older one than it
needs ends with code 6 and says so.

SIGTERM makes /readyz say no, waits drain_delay, lets requests finish and
closes the store. A second signal ends the process at once; nothing that was
acknowledged is lost.`,
	}
	configFlags(cmd, serveDefault)
	cmd.RunE = func(*cobra.Command, []string) error {
		c, err := loadConfig(sys, cmd.Flags(), serveDefault)
		if err != nil {
			return err
		}
		table, err := tenantTable(c.Tenants)
		if err != nil {
			return err
		}
		if err := c.checkServing(sys); err != nil {
			return err
		}
		d, err := newDaemon(sys, c)
		if err != nil {
			return err
		}
		if !c.target.sql() {
			warnOfOpenData(d.log, c.Data)
		}
		d.table = func() (*tenant.Table, error) { return table, nil }
		d.ready = func(address net.Addr) error {
			d.log.Info("ready", "listen", address.String(), "store", c.target.String(), "tenants", len(c.Tenants), "version", readVersion().Version)
			return nil
		}
		return d.run(cmd.Context())
	}
	return cmd
}
