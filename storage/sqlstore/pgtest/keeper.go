package pgtest

import (
	"context"
	_ "embed" // the script
	"fmt"
	"io"
	"os/exec"
	"time"
)

// keeperWait bounds what the keeper does at the end: its own two waits of ten
// seconds, and the removal of a folder.
const keeperWait = 60 * time.Second

//go:embed keeper.sh
var keeperScript string

// keeper is a process that holds the other end of a pipe. The kernel closes
// ours however this process ends, and then the keeper ends the server. The
// usual way, a signal from the kernel at the parent's death, is not enough: it
// reaches the postmaster only, whose children do not notice while they are
// paused; it comes too early, with the thread that started the process; and it
// leaves the folder.
//
// The keeper has the server's account. Root without further capabilities, as
// in a container, may not see where processes of others work.
type keeper struct {
	pipe  io.Closer
	cmd   *exec.Cmd
	ended chan struct{}
}

func startKeeper(ctx context.Context, data string, p programs, who account) (*keeper, error) {
	if err := who.mustEnter(ctx, data); err != nil {
		return nil, err
	}
	k := &keeper{ended: make(chan struct{})}
	k.cmd = who.command(context.WithoutCancel(ctx), "/", "/bin/sh", "-c", keeperScript, "keeper", data, p.postgres, p.initdb)
	pipe, err := k.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start the keeper: %w", err)
	}
	if err := k.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the keeper: %w", err)
	}
	k.pipe = pipe
	go func() {
		defer close(k.ended)
		_ = k.cmd.Wait() // its result is that nothing is left, which Close sees to
	}()
	return k, nil
}

// release has the keeper do its work, and waits for it.
func (k *keeper) release() error {
	_ = k.pipe.Close() // Wait closes it too, when the keeper was killed
	select {
	case <-k.ended:
		return nil
	case <-time.After(keeperWait):
		return fmt.Errorf("the keeper did not end within %v", keeperWait)
	}
}
