package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	warifu "github.com/warifu/warifu/sdk/go"
)

// finding is what one check of the doctor says.
type finding struct {
	Check  string `json:"check"`
	Status string `json:"status"` // ok, warn, fail
	Detail string `json:"detail"`
}

const (
	statusOK   = "ok"
	statusWarn = "warn"
	statusFail = "fail"
)

func newDoctor(sys *system) *cobra.Command {
	d := doctor{sys: sys}
	var out output
	var live bool
	cmd := &cobra.Command{
		Use: "doctor", Short: "Check that a server can be used from here, or what its store is like", GroupID: groupClient, Args: cobra.NoArgs,
		Long: `Checks that the server answers and is ready, that the API key is accepted, that
both clocks agree, and how long a request takes. With --write it also claims and
completes an event of consumer warifu-doctor, which stays until it expires. With
--data it looks at a store's folder on this machine instead, without changing
it. Exit code 1: a check failed.

With --store, --store-file or --config it looks at that store instead. Of a
database it says whether it can be reached, and whether its version, isolation
level, encoding, schema, clock, connections and plans of statements are what a
server needs. It changes nothing there. With WARIFU_STORE or WARIFU_STORE_FILE it
does so after it has looked at the server.

--live asks nothing but /livez and prints nothing: for health checks of
containers.`,
	}
	d.client.bind(sys, cmd)
	out.bind(cmd)
	cmd.Flags().BoolVar(&live, "live", false, "only ask whether the process is alive")
	cmd.Flags().BoolVar(&d.write, "write", false, "also claim and complete an event")
	cmd.Flags().StringVar(&d.data, "data", "", "look at the store in this folder instead of a server")
	storeFlags(cmd)
	d.flags = cmd.Flags()
	cmd.RunE = func(*cobra.Command, []string) error {
		if err := out.validate(); err != nil {
			return err
		}
		if live {
			return d.live(cmd.Context())
		}
		findings, err := d.examine(cmd.Context())
		if err != nil {
			return err
		}
		err = out.write(sys.stdout, findings, func(w io.Writer) {
			for _, f := range findings {
				row(w, f.Status, f.Check, f.Detail)
			}
		})
		if err != nil {
			return err
		}
		if slices.ContainsFunc(findings, func(f finding) bool { return f.Status == statusFail }) {
			return exit(exitFailed, nil)
		}
		return nil
	}
	return cmd
}

type doctor struct {
	sys    *system
	client clientFlags
	flags  *pflag.FlagSet
	data   string
	write  bool
}

func (d *doctor) live(ctx context.Context) error {
	answer, err := d.get(ctx, "/livez")
	if err != nil {
		return exit(exitUnavailable, err)
	}
	if answer.status != http.StatusOK {
		return exit(exitUnavailable, fmt.Errorf("/livez: HTTP status %d", answer.status))
	}
	return nil
}

func (d *doctor) examine(ctx context.Context) ([]finding, error) {
	switch {
	case slices.ContainsFunc([]string{"store", "store-file", "config"}, d.flags.Changed):
		return d.examineStore(ctx)
	case d.data != "":
		return examineData(d.data), nil
	}
	findings, reachable := d.reach(ctx)
	if reachable {
		findings = append(findings, d.ask(ctx)...)
	}
	if d.sys.env("WARIFU_STORE") == "" && d.sys.env("WARIFU_STORE_FILE") == "" {
		return findings, nil
	}
	more, err := d.examineStore(ctx)
	return append(findings, more...), err
}

// clockSkewMax is how far the clocks may differ before the doctor warns: event
// times are refused when they are further ahead, and a Date header has whole
// seconds.
const clockSkewMax = 5 * time.Second

// reach checks what needs no API key.
func (d *doctor) reach(ctx context.Context) ([]finding, bool) {
	before := d.sys.now()
	alive, err := d.get(ctx, "/livez")
	after := d.sys.now()
	if err != nil {
		return []finding{{"server", statusFail, err.Error()}}, false
	}
	if alive.status != http.StatusOK {
		return []finding{{"server", statusFail, fmt.Sprintf("%s/livez: HTTP status %d; is this a warifu server?", d.client.server(), alive.status)}}, false
	}
	findings := []finding{{"server", statusOK, d.client.server()}, skew(alive.date, before, after)}
	ready, err := d.get(ctx, "/readyz?verbose")
	switch {
	case err != nil:
		findings = append(findings, finding{"ready", statusFail, err.Error()})
	case ready.status != http.StatusOK:
		findings = append(findings, finding{"ready", statusFail, strings.Join(strings.Fields(ready.body), " ")})
	default:
		findings = append(findings, finding{"ready", statusOK, strings.Join(strings.Fields(ready.body), " ")})
	}
	return findings, true
}

func (d *doctor) get(ctx context.Context, path string) (page, error) {
	ctx, cancel := context.WithTimeout(ctx, d.client.timeout)
	defer cancel()
	return get(ctx, strings.TrimSuffix(d.client.server(), "/")+path)
}

func skew(date time.Time, before, after time.Time) finding {
	if date.IsZero() {
		return finding{"clock", statusWarn, "the server sent no Date"}
	}
	// The header is cut to a second: the server's clock was half of one later.
	off := date.Add(500 * time.Millisecond).Sub(before.Add(after.Sub(before) / 2))
	if off.Abs() > clockSkewMax {
		return finding{"clock", statusWarn, fmt.Sprintf("the server's clock differs by %v; its own decides, but event times are compared with it", off.Round(time.Second))}
	}
	return finding{"clock", statusOK, fmt.Sprintf("within %v of the server's", clockSkewMax)}
}

// ask checks what needs the API key.
func (d *doctor) ask(ctx context.Context) []finding {
	api, err := d.client.claims()
	if err != nil {
		return []finding{{"api key", statusFail, err.Error()}}
	}
	begin := d.sys.now()
	policy, err := api.GetPolicy(ctx, &warifuv1.GetPolicyRequest{Consumer: doctorConsumer})
	if err != nil && exitCodeOf(d.client.failedCall(err)) != exitUsage { // strict tenants do not know the doctor
		return []finding{{"api key", statusFail, err.Error()}}
	}
	findings := []finding{
		{"api key", statusOK, "accepted"},
		{"round trip", statusOK, d.sys.now().Sub(begin).Round(10 * time.Microsecond).String()},
	}
	if v := policy.GetProtocolVersion(); policy != nil && v != protocolVersion {
		findings = append(findings, finding{"protocol", statusFail, fmt.Sprintf("the server speaks version %d, this program %d", v, protocolVersion)})
	} else {
		findings = append(findings, finding{"protocol", statusOK, fmt.Sprintf("version %d, this program is %s", protocolVersion, readVersion().Version)})
	}
	if d.write {
		findings = append(findings, d.writeOnce(ctx))
	}
	return findings
}

const doctorConsumer = "warifu-doctor"

// writeOnce takes one event through its whole life in one durable write.
func (d *doctor) writeOnce(ctx context.Context) finding {
	client, err := d.client.client()
	if err != nil {
		return finding{"write", statusFail, err.Error()}
	}
	begin := d.sys.now()
	answer, err := client.Record(ctx, warifu.Event{Consumer: doctorConsumer, ID: uuid.NewString()}, warifu.Completion{})
	took := d.sys.now().Sub(begin)
	if err = errors.Join(err, client.Close()); err != nil {
		return finding{"write", statusFail, err.Error()}
	}
	if !answer.Grant.Recorded {
		return finding{"write", statusFail, "a new event was answered " + answer.Decision.String()}
	}
	return finding{"write", statusOK, "claimed and completed in " + took.Round(10*time.Microsecond).String()}
}

func exitCodeOf(err error) int {
	if coded, ok := errors.AsType[*exitError](err); ok {
		return coded.code
	}
	return exitFailed
}
