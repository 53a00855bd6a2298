package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"

	"github.com/warifu/warifu/loadtest/measure"
	"github.com/warifu/warifu/loadtest/peers"
	"github.com/warifu/warifu/loadtest/ratio"
)

// The callers of each budget.
const (
	callersSDK   = 256
	callersUnary = 64
	submitters   = 8
)

// experiment prepares what is measured. What it starts ends with its folder.
type experiment struct {
	name  string
	build func(context.Context, *folder) (*ratio.Experiment, error)
}

// all experiments, in the order in which they run.
var all = []experiment{
	{"P1", p1}, {"P3", p3}, {"P4", p4}, {"P6", p6}, {"P8", p8}, {"P9", p9}, {"allocations", countAllocations},
	{"P2", p2}, {"P6-sql", p6SQL}, {"P8-sql", p8SQL}, {"P9-sql", p9SQL}, {"growth", growth}, {"updates", updates},
}

// side is a side whose every measurement is a job of its own.
func (f *folder) side(name string, j job) ratio.Side {
	return ratio.Side{Name: name, Measure: func(ctx context.Context, round int) (measure.Sample, error) {
		return f.measured(ctx, name, round, j)
	}}
}

// fresh is a side whose every measurement has a folder of its own, made by
// copy from nothing or from a template.
func (f *folder) fresh(name, template string, j job) ratio.Side {
	return ratio.Side{Name: name, Measure: func(ctx context.Context, round int) (measure.Sample, error) {
		dir, err := os.MkdirTemp(f.dir, "side-")
		if err != nil {
			return measure.Sample{}, err
		}
		defer os.RemoveAll(dir) //nolint:errcheck // all of it goes at the end
		j := j
		j.Dir = filepath.Join(dir, "data")
		if template != "" {
			if err := linkTree(template, j.Dir); err != nil {
				return measure.Sample{}, err
			}
		}
		return f.measured(ctx, name, round, j)
	}}
}

// unfit is what does not belong in the name of a file.
var unfit = regexp.MustCompile(`[^A-Za-z0-9]+`)

// measured runs the job, profiled if asked to.
func (f *folder) measured(ctx context.Context, name string, round int, j job) (measure.Sample, error) {
	if j.Seconds == 0 {
		j.Seconds = f.opts.seconds
	}
	if f.opts.profile == "" {
		return j.run(ctx)
	}
	base := filepath.Join(f.opts.profile, fmt.Sprintf("%s-%s-%d", f.name, unfit.ReplaceAllString(name, "-"), round))
	j.Profile = base + ".client.pprof"
	server := f.profiled[j.PID]
	if server == "" {
		return j.run(ctx)
	}
	ended := make(chan error, 1)
	go func() { ended <- fetchProfile(ctx, server, j.Seconds, base+".server.pprof") }()
	s, err := j.run(ctx)
	return s, errors.Join(err, <-ended)
}

// p1: claims through the SDK against what people use today.
func p1(ctx context.Context, f *folder) (*ratio.Experiment, error) {
	ours, err := f.startWarifu(ctx)
	if err != nil {
		return nil, err
	}
	redis, redisAddress, err := peers.StartRedis(ctx, f.sub("redis"))
	if err != nil {
		return nil, err
	}
	f.stops = append(f.stops, redis.Stop)
	program, err := peers.NATSProgram(ctx, f.opts.tools)
	if err != nil {
		return nil, err
	}
	nats, natsAddress, err := peers.StartNATS(ctx, program, f.sub("nats"))
	if err != nil {
		return nil, err
	}
	f.stops = append(f.stops, nats.Stop)
	return &ratio.Experiment{
		Name: f.name,
		Sides: []ratio.Side{
			f.side("Go SDK, 256 callers", ours.job("sdk-claim", callersSDK)),
			f.side("Redis SET NX, fsync always", job{Role: "redis", Callers: callersSDK, Address: redisAddress, PID: redis.PID()}),
			f.side("NATS JetStream, sync always", job{Role: "nats", Callers: callersSDK, Address: natsAddress, PID: nats.PID()}),
		},
		Comparisons: []ratio.Comparison{
			{ID: "P1", Unit: "claims", Ours: "Go SDK, 256 callers", Against: "Redis SET NX, fsync always", Budget: 2},
			{ID: "P1", Unit: "claims", Ours: "Go SDK, 256 callers", Against: "NATS JetStream, sync always", Budget: 8},
		},
	}, nil
}

// p3: single claims against the transport alone.
func p3(ctx context.Context, f *folder) (*ratio.Experiment, error) {
	ours, err := f.startWarifu(ctx)
	if err != nil {
		return nil, err
	}
	empty, err := f.startEmpty(ctx)
	if err != nil {
		return nil, err
	}
	return &ratio.Experiment{
		Name: f.name,
		Sides: []ratio.Side{
			f.side("unary Claim, 64 callers", ours.job("unary", callersUnary)),
			f.side("empty Connect handler", empty.job("unary", callersUnary)),
		},
		Comparisons: []ratio.Comparison{
			{ID: "P3", Unit: "claims", Ours: "unary Claim, 64 callers", Against: "empty Connect handler", Budget: 0.8},
		},
	}, nil
}

// p4: arbiter and driver against the engine alone.
func p4(_ context.Context, f *folder) (*ratio.Experiment, error) {
	e := &ratio.Experiment{Name: f.name}
	short := f.opts.seconds / 2 // for what has no budget
	e.Sides = []ratio.Side{
		f.fresh("arbiter + driver, 8 × 500", "", job{Role: "driver", Callers: submitters}),
		f.fresh("raw engine, 8 × 500", "", job{Role: "raw", Callers: submitters}),
		f.fresh("raw engine, batches sorted, 8 × 500", "", job{Role: "raw", Callers: submitters, Sorted: true, Seconds: short}),
		f.fresh("arbiter + driver, 1 × 500", "", job{Role: "driver", Callers: 1, Seconds: short}),
		f.fresh("raw engine, 1 × 500", "", job{Role: "raw", Callers: 1, Seconds: short}),
	}
	e.Comparisons = []ratio.Comparison{
		{ID: "P4", Unit: "claims", Ours: "arbiter + driver, 8 × 500", Against: "raw engine, 8 × 500", Budget: 0.7},
		{ID: "P4", Unit: "claims", Ours: "arbiter + driver, 1 × 500", Against: "raw engine, 1 × 500"},
		{ID: "P4", Unit: "claims", Ours: "arbiter + driver, 8 × 500", Against: "raw engine, batches sorted, 8 × 500"},
	}
	return e, nil
}

// p6: fresh keys among many, with the filter and without.
func p6(ctx context.Context, f *folder) (*ratio.Experiment, error) {
	template := f.sub("template")
	if _, err := (&job{Role: "fill", Dir: template, Keys: f.opts.retained}).run(ctx); err != nil {
		return nil, err
	}
	with := fmt.Sprintf("with filter, %s retained", count(f.opts.retained))
	return &ratio.Experiment{
		Name: f.name,
		Sides: []ratio.Side{
			f.fresh(with, template, job{Role: "retained", Callers: submitters}),
			f.fresh("without filter", template, job{Role: "retained", Callers: submitters, NoFilter: true}),
		},
		Comparisons: []ratio.Comparison{{ID: "P6", Unit: "claims", Ours: with, Against: "without filter", Budget: 3}},
		Floors:      []ratio.Floor{{ID: "P6", What: "reads skipped, %", Side: with, Key: skippedShare, Budget: 99}},
	}, nil
}

// p8: replays against fresh claims.
func p8(ctx context.Context, f *folder) (*ratio.Experiment, error) {
	ours, err := f.startWarifu(ctx)
	if err != nil {
		return nil, err
	}
	prepare := ours.job("sdk-prepare", callersSDK)
	prepare.Seed, prepare.Keys = rand.Uint64(), f.opts.completed
	if _, err := prepare.run(ctx); err != nil {
		return nil, err
	}
	replay := prepare
	replay.Role = "sdk-replay"
	return &ratio.Experiment{
		Name: f.name,
		Sides: []ratio.Side{
			f.side("replays, 256 callers", replay),
			f.side("fresh claims, 256 callers", ours.job("sdk-claim", callersSDK)),
		},
		Comparisons: []ratio.Comparison{
			{ID: "P8", Unit: "answers", Ours: "replays, 256 callers", Against: "fresh claims, 256 callers", Budget: 1},
		},
	}, nil
}

// p9: the whole life of an event against its claim alone.
func p9(ctx context.Context, f *folder) (*ratio.Experiment, error) {
	ours, err := f.startWarifu(ctx)
	if err != nil {
		return nil, err
	}
	return &ratio.Experiment{
		Name: f.name,
		Sides: []ratio.Side{
			f.side("claim + complete, 256 callers", ours.job("sdk-life", callersSDK)),
			f.side("claim alone, 256 callers", ours.job("sdk-claim", callersSDK)),
		},
		Comparisons: []ratio.Comparison{
			{ID: "P9", Unit: "events", Ours: "claim + complete, 256 callers", Against: "claim alone, 256 callers", Budget: 0.45},
		},
	}, nil
}

// countAllocations has one side: it is written down, not compared.
func countAllocations(_ context.Context, f *folder) (*ratio.Experiment, error) {
	const side = "server, batches of 256"
	j := job{Role: "allocations", Keys: allocationBatch * allocationBatches}
	return &ratio.Experiment{
		Name: f.name, Sides: []ratio.Side{f.fresh(side, "", j)},
		Floors: []ratio.Floor{
			{ID: "–", What: "allocations per claim in the server", Side: side, Key: allocsPerClaim},
			{ID: "–", What: "bytes allocated per claim in the server", Side: side, Key: bytesPerClaim},
		},
	}, nil
}

// count writes 2000000 as "2 M".
func count(n int) string {
	switch {
	case n >= 1_000_000 && n%100_000 == 0:
		return fmt.Sprintf("%g M", float64(n)/1e6)
	case n >= 1000 && n%1000 == 0:
		return fmt.Sprintf("%d k", n/1000)
	}
	return fmt.Sprint(n)
}
