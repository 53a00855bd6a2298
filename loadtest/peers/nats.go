package peers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/warifu/warifu/loadtest/measure"
	"github.com/warifu/warifu/loadtest/process"
)

// NATSVersion is the server that is measured. It is built once into a folder
// of tools; this module never depends on it.
const NATSVersion = "v2.15.3"

const natsPackage = "github.com/nats-io/nats-server/v2"

// NATSProgram returns the server's program in dir, building it when it is not
// there yet.
func NATSProgram(ctx context.Context, dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("nats: %w", err)
	}
	program := filepath.Join(dir, "nats-server-"+NATSVersion)
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	build, err := os.MkdirTemp("", "nats-build-")
	if err != nil {
		return "", fmt.Errorf("nats: %w", err)
	}
	defer os.RemoveAll(build) //nolint:errcheck // a temporary folder
	cmd := exec.CommandContext(ctx, "go", "install", natsPackage+"@"+NATSVersion)
	cmd.Dir, cmd.Env = build, append(os.Environ(), "GOBIN="+build, "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s@%s: %w\n%s", natsPackage, NATSVersion, err, out)
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", fmt.Errorf("nats: %w", err)
	}
	data, err := os.ReadFile(filepath.Join(build, "nats-server"))
	if err != nil {
		return "", fmt.Errorf("nats: %w", err)
	}
	if err := install(program, data); err != nil {
		return "", fmt.Errorf("nats: %w", err)
	}
	return program, nil
}

// install puts a program under its name when it is whole: one that was cut
// short would be taken for good by every later run, and one that is being run
// cannot be written to.
func install(program string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(program), "nats-install-")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(0o700), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), program)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return err
}

// StartNATS starts a JetStream that syncs every message before it acknowledges.
func StartNATS(ctx context.Context, program, dir string) (*process.Process, string, error) {
	port, err := process.FreePort(ctx)
	if err != nil {
		return nil, "", err
	}
	config := filepath.Join(dir, "nats.conf")
	text := fmt.Sprintf("listen: 127.0.0.1:%s\njetstream {\n  store_dir: %q\n  sync_interval: always\n}\n", port, dir)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, "", fmt.Errorf("nats: %w", err)
	}
	p, err := process.Start(ctx, "nats", dir, nil, program, "-c", config)
	if err != nil {
		return nil, "", err
	}
	address := "127.0.0.1:" + port
	return ready(ctx, p, address)
}

// natsWindow is how long message IDs are remembered; the server's default. A
// longer one would cost the server memory.
const natsWindow = 2 * time.Minute

// NATSClaims publishes a message whose ID is the event's. A second one within
// the window is dropped and its acknowledgement says so.
func NATSClaims(ctx context.Context, address string, key func() string) (measure.Op, func() error, error) {
	conn, err := nats.Connect("nats://" + address)
	if err != nil {
		return nil, nil, fmt.Errorf("nats: %w", err)
	}
	js, err := jetstream.New(conn)
	if err != nil {
		conn.Close()
		return nil, nil, fmt.Errorf("nats: %w", err)
	}
	if _, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: "claims", Subjects: []string{"claims"}, Storage: jetstream.FileStorage, Duplicates: natsWindow,
	}); err != nil {
		conn.Close()
		return nil, nil, fmt.Errorf("nats: create stream: %w", err)
	}
	body := make([]byte, 32) // a digest's worth
	op := func(ctx context.Context, _ int) (int, error) {
		ack, err := js.Publish(ctx, "claims", body, jetstream.WithMsgID(key()))
		if err == nil && ack.Duplicate {
			err = fmt.Errorf("nats: a fresh ID was taken")
		}
		return 1, err
	}
	return op, func() error { conn.Close(); return nil }, nil
}
