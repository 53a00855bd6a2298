package reliability_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

// Variables of the tests' own. No child sees a WARIFU_ one: the program refuses
// those that it does not know.
const (
	asWorker = "GO_TEST_AS_WORKER" // a worker's orders: the test binary is that worker
	soak     = "WARIFU_SOAK"       // not empty: the long form
)

// soakFactor is how much longer the long form is.
const soakFactor = 8

// program is the path of the program under test, built once.
var program string

func TestMain(m *testing.M) {
	if orders := os.Getenv(asWorker); orders != "" {
		os.Exit(work(orders))
	}
	os.Exit(testAll(m))
}

func testAll(m *testing.M) int {
	dir, err := os.MkdirTemp("", "warifu-reliability-")
	if err != nil {
		return failedMain(err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // a temporary folder
	program = filepath.Join(dir, "warifu")
	out, err := exec.Command("go", "build", "-buildvcs=false", "-o", program, "github.com/warifu/warifu/cmd/warifu").CombinedOutput()
	if err != nil {
		return failedMain(fmt.Errorf("build the program: %w\n%s", err, out))
	}
	if code := m.Run(); code != 0 {
		return code
	}
	if err := goleak.Find(); err != nil {
		return failedMain(err)
	}
	return 0
}

func failedMain(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// times is n, or many times n in the long form.
func times(n int) int {
	if os.Getenv(soak) != "" {
		return n * soakFactor
	}
	return n
}

// newRandom prints the seed that makes a run again, as far as processes and
// networks can be made to run again.
func newRandom(t *testing.T) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, seed))
}

// fork is a source of its own for one goroutine.
func fork(rng *rand.Rand) *rand.Rand { return rand.New(rand.NewPCG(rng.Uint64(), rng.Uint64())) }
