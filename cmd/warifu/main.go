// Command warifu is the whole product in one binary: the server (dev, serve),
// the operator's tools (claims, doctor, conformance, keys, config) and a way
// to run a command once per event (once).
//
// It is the only place that reads flags, environment, files and clocks, and
// the only one that picks a storage driver. Everything below it is handed what
// it needs.
package main

import (
	"context"
	"os"
	"time"
)

func main() {
	os.Exit(run(context.Background(), system{
		args:    os.Args[1:],
		environ: os.Environ(),
		stdin:   os.Stdin,
		stdout:  os.Stdout,
		stderr:  os.Stderr,
		now:     time.Now,
	}))
}
