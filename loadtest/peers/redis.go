// Package peers runs the systems that people use today for what Warifu is for,
// as carefully as their own documentation asks, and puts the same load on
// them.
package peers

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/warifu/warifu/loadtest/measure"
	"github.com/warifu/warifu/loadtest/process"
)

// RedisProgram comes from the Debian package of the same name.
const RedisProgram = "redis-server"

// keep is how long a key is remembered: as long as Warifu does by default.
const keep = 48 * time.Hour

// StartRedis starts a Redis that syncs every write before it answers. It has
// neither snapshots nor rewrites of its log to do: those would only slow it.
func StartRedis(ctx context.Context, dir string) (*process.Process, string, error) {
	program, err := exec.LookPath(RedisProgram)
	if err != nil {
		return nil, "", fmt.Errorf("redis: %w; install the Debian package redis-server, or leave P1 out with -only", err)
	}
	port, err := process.FreePort(ctx)
	if err != nil {
		return nil, "", err
	}
	p, err := process.Start(ctx, "redis", dir, nil, program,
		"--bind", "127.0.0.1", "--port", port, "--dir", dir, "--daemonize", "no",
		"--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0", "--save", "")
	if err != nil {
		return nil, "", err
	}
	address := "127.0.0.1:" + port
	return ready(ctx, p, address)
}

// ready returns a server once it listens. One that does not in time is ended:
// it would take its share of the machine from what is measured next.
func ready(ctx context.Context, p *process.Process, address string) (*process.Process, string, error) {
	if err := p.AwaitTCP(ctx, address); err != nil {
		return nil, "", errors.Join(err, p.Stop())
	}
	return p, address, nil
}

// RedisClaims is the usual idiom: SET NX with a time to live. Every caller has
// a connection, so that as many claims as there are callers share one sync.
func RedisClaims(address string, callers int, key func() string) (measure.Op, func() error) {
	client := redis.NewClient(&redis.Options{Addr: address, PoolSize: callers, MinIdleConns: callers})
	return func(ctx context.Context, _ int) (int, error) {
		fresh, err := client.SetNX(ctx, key(), "1", keep).Result()
		if err == nil && !fresh {
			err = fmt.Errorf("redis: a fresh key was taken")
		}
		return 1, err
	}, client.Close
}
