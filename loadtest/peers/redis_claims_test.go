package peers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
)

// fakeRedis speaks as much of the protocol as a claim needs.
type fakeRedis struct {
	address string
	set     func(args []string) string // answers a SET
	opened  chan struct{}              // one for each connection
	open    sync.WaitGroup
}

// connsMax is more than any of these tests opens.
const connsMax = 1000

const (
	redisOK  = "+OK\r\n"
	redisNil = "$-1\r\n"
)

func newFakeRedis(t *testing.T, set func([]string) string) *fakeRedis {
	t.Helper()
	l := listen(t)
	f := &fakeRedis{address: l.Addr().String(), set: set, opened: make(chan struct{}, connsMax)}
	f.open.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			f.opened <- struct{}{}
			f.open.Go(func() { f.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		f.open.Wait() // every client has closed what it opened
	})
	return f
}

func (f *fakeRedis) serve(conn net.Conn) {
	defer conn.Close() //nolint:errcheck // the client has gone
	r := bufio.NewReader(conn)
	for {
		args, err := readCommand(r)
		if err != nil {
			return
		}
		reply := "-ERR unknown command\r\n" // HELLO and CLIENT among them: clients do without
		if strings.EqualFold(args[0], "set") {
			reply = f.set(args[1:])
		}
		if _, err := io.WriteString(conn, reply); err != nil {
			return
		}
	}
}

// readCommand reads an array of strings.
func readCommand(r *bufio.Reader) ([]string, error) {
	var n int
	if _, err := fmt.Fscanf(r, "*%d\r\n", &n); err != nil {
		return nil, err
	}
	args := make([]string, n)
	for i := range args {
		var length int
		if _, err := fmt.Fscanf(r, "$%d\r\n", &length); err != nil {
			return nil, err
		}
		text := make([]byte, length+len("\r\n"))
		if _, err := io.ReadFull(r, text); err != nil {
			return nil, err
		}
		args[i] = string(text[:length])
	}
	return args, nil
}

// keys hands out the keys given and remembers that there are no more.
func keys(list ...string) func() string {
	var next atomic.Int64
	return func() string { return list[next.Add(1)-1] }
}

func TestRedisClaims(t *testing.T) {
	t.Parallel()
	taken, commands := map[string]bool{}, [][]string{}
	var mu sync.Mutex
	fake := newFakeRedis(t, func(args []string) string {
		mu.Lock()
		defer mu.Unlock()
		commands = append(commands, args)
		if taken[args[0]] {
			return redisNil
		}
		taken[args[0]] = true
		return redisOK
	})
	checkRedisClaims(t, fake.address)
	mu.Lock()
	defer mu.Unlock()
	for i, key := range []string{"event-1", "event-2", "event-1"} {
		if want := []string{key, "1", "ex", "172800", "nx"}; i >= len(commands) || !slices.Equal(commands[i], want) {
			t.Fatalf("asked %q, want SET %q", commands, want)
		}
	}
	if len(commands) != 3 {
		t.Errorf("%d commands for 3 claims", len(commands))
	}
}

// checkRedisClaims claims two fresh keys and one of them again.
func checkRedisClaims(t *testing.T, address string) {
	t.Helper()
	op, end := RedisClaims(address, 1, keys("event-1", "event-2", "event-1", "event-3"))
	for range 2 {
		if n, err := op(t.Context(), 0); n != 1 || err != nil {
			t.Errorf("a fresh key: %d claims, %v", n, err)
		}
	}
	if _, err := op(t.Context(), 0); err == nil || !strings.Contains(err.Error(), "redis: a fresh key was taken") {
		t.Errorf("a key that was taken: %v", err)
	}
	if err := end(); err != nil {
		t.Error(err)
	}
	if _, err := op(t.Context(), 0); !errors.Is(err, redis.ErrClosed) {
		t.Errorf("after its end: %v", err)
	}
}

// TestRedisClaimsTogether: no caller waits for the connection of another. Each
// has one before the first claim, and the server answers nobody before all have
// asked.
func TestRedisClaimsTogether(t *testing.T) {
	t.Parallel()
	const callers = 64 // more than a client opens by itself
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var asked sync.Map
	var count, next atomic.Int64
	all := make(chan struct{})
	fake := newFakeRedis(t, func(args []string) string {
		if _, again := asked.LoadOrStore(args[0], true); !again && count.Add(1) == callers {
			close(all)
		}
		select {
		case <-all:
		case <-ctx.Done():
		}
		return redisOK
	})
	op, end := RedisClaims(fake.address, callers, func() string { return fmt.Sprint("event-", next.Add(1)) })
	for n := range callers {
		select {
		case <-fake.opened:
		case <-ctx.Done():
			t.Fatalf("%d connections for %d callers", n, callers)
		}
	}
	var group sync.WaitGroup
	for caller := range callers {
		group.Go(func() {
			if _, err := op(ctx, caller); err != nil {
				t.Errorf("caller %d: %v", caller, err)
			}
		})
	}
	group.Wait()
	if err := end(); err != nil {
		t.Error(err)
	}
}

// TestRedisRefuses: what is not an answer is an error, and never a claim.
func TestRedisRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ reply, want string }{
		"out of memory":    {"-OOM command not allowed when used memory > 'maxmemory'\r\n", "OOM command not allowed"},
		"a log in trouble": {"-MISCONF Errors writing to the AOF file: No space left on device\r\n", "No space left on device"},
		"not the protocol": {"HTTP/1.1 400 Bad Request\r\n", "400 Bad Request"},
		"another answer":   {"*0\r\n", "can't parse reply"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := newFakeRedis(t, func([]string) string { return c.reply })
			op, end := RedisClaims(fake.address, 1, keys("event-1"))
			if _, err := op(t.Context(), 0); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error = %v, want one about %q", err, c.want)
			}
			if err := end(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestRedisIsGone(t *testing.T) {
	t.Parallel()
	l := listen(t)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	op, end := RedisClaims(l.Addr().String(), 1, keys("event-1", "event-2"))
	if _, err := op(t.Context(), 0); err == nil {
		t.Error("nobody granted a claim")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := op(ended, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of the context: %v", err)
	}
	if err := end(); err != nil {
		t.Error(err)
	}
}
