package reliability_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	warifu "github.com/warifu/warifu/sdk/go"
)

// orders are what a worker process is told to do with one delivery.
type orders struct {
	URL, Key        string
	Consumer, Event string
	Take            int
	Lease, Wait     time.Duration
	Stock           stock
	DieAt           string // one of the points below, or nowhere
	Pause           bool   // after the effect, until a line is read and the lease is lost
}

// Where a worker can die.
const (
	afterClaim      = "after claim"
	afterEffect     = "after effect"
	afterCompletion = "after completion"
	nowhere         = ""
)

// report is a line that a worker says.
type report struct {
	What     string // one of the below
	Decision string // once done
	Number   uint32 // of the attempt; with granted
	Fence    int64
	Takeover string
	Body     string
	Accepted bool
	Applied  bool
	Cause    string // why the handler's context ended
	Error    string
}

// What a worker reports.
const (
	wasGranted = "granted"
	isPaused   = "paused"
	isDone     = "done"
)

func say(r report) {
	line, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	if _, err := os.Stdout.Write(append(line, '\n')); err != nil {
		panic(err)
	}
}

// work is a worker process: it handles one delivery as a consumer would.
func work(text string) int {
	var o orders
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return failedMain(err)
	}
	c, err := warifu.New(o.URL, warifu.WithAPIKey(o.Key))
	if err != nil {
		return failedMain(err)
	}
	content := sha256.Sum256(fmt.Appendf(nil, "take %d", o.Take))
	e := warifu.Event{Consumer: o.Consumer, ID: o.Event, Digests: []warifu.Digest{{Scheme: "sha256/take.v1", Value: content[:]}}}
	result, err := c.Do(context.Background(), e, o.handle, warifu.WithLease(o.Lease), warifu.WithWait(o.Wait))
	o.die(afterCompletion)
	done := report{
		What: isDone, Decision: decisionOf(&result, err), Body: string(result.Body),
		Accepted: result.Accepted, Applied: result.Applied,
	}
	if err != nil {
		done.Error = err.Error()
	}
	say(done)
	return 0
}

func (o *orders) handle(ctx context.Context, g warifu.Grant) (warifu.Completion, error) {
	say(report{What: wasGranted, Number: g.Attempt, Fence: g.Fence, Takeover: g.Takeover.String()})
	o.die(afterClaim)
	left, err := o.Stock.take(o.Take, fmt.Sprintf("attempt %d, fence %d", g.Attempt, g.Fence))
	if err != nil {
		return warifu.Completion{}, err
	}
	o.die(afterEffect)
	if o.Pause {
		say(report{What: isPaused})
		if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
			return warifu.Completion{}, err
		}
		<-ctx.Done()
		say(report{What: isPaused, Cause: context.Cause(ctx).Error()})
	}
	return warifu.Completion{Body: fmt.Appendf(nil, "took %d, left %d, attempt %d", o.Take, left, g.Attempt)}, nil
}

// die is kill -9, at this very point.
func (o *orders) die(at string) {
	if o.DieAt != at {
		return
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
		panic(err)
	}
	select {}
}

func decisionOf(r *warifu.Result, err error) string {
	for decision, sentinel := range map[string]error{
		"IN_PROGRESS": warifu.ErrInProgress, "MISMATCH": warifu.ErrMismatch, "IN_DOUBT": warifu.ErrInDoubt,
		"STALE": warifu.ErrStale,
	} {
		if errors.Is(err, sentinel) {
			return decision
		}
	}
	switch {
	case err != nil:
		return "ERROR"
	case r.Replayed:
		return "DUPLICATE"
	}
	return "GRANTED"
}

// worker is a worker process as its test sees it.
type worker struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.WriteCloser
	said  *bufio.Scanner
}

func hire(t *testing.T, o orders) *worker {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	w := &worker{t: t, cmd: exec.Command(self)}
	w.cmd.Env, w.cmd.Stderr = cleanEnv(asWorker+"="+string(text)), os.Stderr
	if w.stdin, err = w.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	said, err := w.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	w.said = bufio.NewScanner(said)
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if w.cmd.ProcessState == nil { // the test ended early
			w.signal(syscall.SIGKILL)
			_ = w.cmd.Wait() // killed
		}
	})
	return w
}

// next is the worker's next report; false when it has ended.
func (w *worker) next() (report, bool) {
	w.t.Helper()
	if !w.said.Scan() {
		return report{}, false
	}
	var r report
	if err := json.Unmarshal(w.said.Bytes(), &r); err != nil {
		w.t.Fatalf("a worker said %q: %v", w.said.Text(), err)
	}
	return r, true
}

// await is the next report, which must be of a kind.
func (w *worker) await(what string) report {
	w.t.Helper()
	r, ok := w.next()
	if !ok || r.What != what {
		w.t.Fatalf("a worker reports %+v instead of %q", r, what)
	}
	return r
}

func (w *worker) signal(s syscall.Signal) {
	w.t.Helper()
	if err := w.cmd.Process.Signal(s); err != nil {
		w.t.Fatalf("%v to a worker: %v", s, err)
	}
}

// delivery is what came of handing an event to a worker.
type delivery struct {
	granted *report // nil: the handler did not run
	done    *report // nil: the worker died before it could say so
}

// finish reads the worker's reports until it ends.
func (w *worker) finish() delivery {
	w.t.Helper()
	var d delivery
	for r, ok := w.next(); ok; r, ok = w.next() {
		switch r.What {
		case wasGranted:
			d.granted = &r
		case isDone:
			d.done = &r
		default:
			w.t.Fatalf("a worker reports %+v", r)
		}
	}
	err := w.cmd.Wait()
	status, ok := w.cmd.ProcessState.Sys().(syscall.WaitStatus)
	killed := ok && status.Signaled() && status.Signal() == syscall.SIGKILL
	if (err != nil && !killed) || killed != (d.done == nil) {
		w.t.Fatalf("a worker ended in another way than it was told to: %v; %+v", err, d)
	}
	return d
}

// decision is what the worker was told first, or else in the end.
func (d delivery) decision() string {
	if d.granted != nil {
		return "GRANTED"
	}
	return d.done.Decision
}
