// Package ratio measures two or more sides by turns and compares them. Machines
// are noisy and differ; what both sides met within seconds of each other is
// what can be compared.
package ratio

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/warifu/warifu/loadtest/measure"
)

// Side is one of the things that are compared.
type Side struct {
	Name    string
	Measure func(ctx context.Context, round int) (measure.Sample, error)
}

// Comparison says which side has to reach which multiple of another's rate.
type Comparison struct {
	ID      string
	Unit    string // what is counted: "claims", "events"
	Ours    string
	Against string
	Budget  float64 // least ratio of rates; 0: for information only
}

// Floor is a least value of what a side reports in Sample.Extra.
type Floor struct {
	ID     string
	What   string
	Side   string
	Key    string
	Budget float64
}

// Experiment is a set of sides that are measured by turns.
type Experiment struct {
	Name        string
	Sides       []Side
	Comparisons []Comparison
	Floors      []Floor
}

// Result holds the samples of each side, one for each round, without those of
// the warm-up round.
type Result struct {
	Name        string                      `json:"name"`
	Samples     map[string][]measure.Sample `json:"samples"`
	Order       []string                    `json:"order"` // of the sides
	Comparisons []Comparison                `json:"-"`
	Floors      []Floor                     `json:"-"`
}

// Run measures the sides by turns, A B A B …: one round that does not count,
// and then as many as pairs says. note is told of every sample.
func (e *Experiment) Run(ctx context.Context, pairs int, note func(string)) (*Result, error) {
	r := &Result{Name: e.Name, Samples: map[string][]measure.Sample{}, Comparisons: e.Comparisons, Floors: e.Floors}
	for _, side := range e.Sides {
		r.Order = append(r.Order, side.Name)
	}
	for round := range pairs + 1 {
		for _, side := range e.Sides {
			s, err := side.Measure(ctx, round)
			if err == nil && s.Ops == 0 {
				err = errors.New("nothing was done within the window")
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %s: round %d: %w", e.Name, side.Name, round, err)
			}
			if round > 0 {
				r.Samples[side.Name] = append(r.Samples[side.Name], s)
			}
			note(fmt.Sprintf("%s round %d/%d  %-28s %10.0f/s  p50 %6.2f ms", e.Name, round, pairs, side.Name, s.Rate(), s.P50/1000))
		}
	}
	return r, nil
}

// Spread is a median with the least and the greatest value.
type Spread struct{ Median, Min, Max float64 }

// SpreadOf sorts values, which must not be empty, and looks at their middle.
func SpreadOf(values []float64) Spread {
	if len(values) == 0 {
		return Spread{Median: math.NaN(), Min: math.NaN(), Max: math.NaN()}
	}
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	median := v[n/2]
	if n%2 == 0 {
		median = (v[n/2-1] + v[n/2]) / 2
	}
	return Spread{Median: median, Min: v[0], Max: v[n-1]}
}

// Of is the spread of a number of each of a side's samples.
func (r *Result) Of(side string, number func(*measure.Sample) float64) Spread {
	var values []float64
	for i := range r.Samples[side] {
		values = append(values, number(&r.Samples[side][i]))
	}
	return SpreadOf(values)
}

// Ratio is the spread of the ratios of rates, each taken within one round.
func (r *Result) Ratio(c *Comparison) Spread {
	ours, theirs := r.Samples[c.Ours], r.Samples[c.Against]
	var values []float64
	for i := range min(len(ours), len(theirs)) {
		values = append(values, ours[i].Rate()/theirs[i].Rate())
	}
	return SpreadOf(values)
}

// CPURatio is the spread of how much more CPU time an operation costs the other
// side, client and server together, each taken within one round. On a machine
// that has other work to do it says more than the ratio of rates.
func (r *Result) CPURatio(c *Comparison) Spread {
	ours, theirs := r.Samples[c.Ours], r.Samples[c.Against]
	var values []float64
	for i := range min(len(ours), len(theirs)) {
		values = append(values, theirs[i].CPUPerOp()/ours[i].CPUPerOp())
	}
	return SpreadOf(values)
}

// Verdict says whether a value reaches its budget.
func Verdict(value, budget float64) string {
	switch {
	case budget == 0:
		return "–"
	case value >= budget:
		return "pass"
	}
	return "**short**"
}
