package ratio

import (
	"fmt"
	"math"
	"strings"

	"github.com/warifu/warifu/loadtest/measure"
)

// Table renders the comparisons of all results as Markdown.
func Table(results []*Result) string {
	var b strings.Builder
	b.WriteString("| # | ours | against | ours, per s | theirs, per s | ratio | budget | | CPU ratio |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range results {
		for i := range r.Comparisons {
			c := &r.Comparisons[i]
			ratio := r.Ratio(c)
			row(&b, c.ID, c.Ours+", "+c.Unit, c.Against,
				rates(r.Of(c.Ours, (*measure.Sample).Rate)), rates(r.Of(c.Against, (*measure.Sample).Rate)),
				fmt.Sprintf("**%.2f×** (%.2f–%.2f)", ratio.Median, ratio.Min, ratio.Max),
				budget(c.Budget, "≥ %.2f×"), Verdict(ratio.Median, c.Budget), fmt.Sprintf("%.2f×", r.CPURatio(c).Median))
		}
		for _, f := range r.Floors {
			got := r.Of(f.Side, func(s *measure.Sample) float64 { return s.Extra[f.Key] })
			row(&b, f.ID, f.What, "", fmt.Sprintf("%.4g (%.4g–%.4g)", got.Median, got.Min, got.Max), "", "",
				budget(f.Budget, "≥ %.4g"), Verdict(got.Median, f.Budget), "")
		}
	}
	return b.String()
}

// Costs renders what each side cost, as Markdown.
func Costs(results []*Result) string {
	var b strings.Builder
	b.WriteString("| # | side | per s | p50 ms | p99 ms | client CPU s / 1k | server CPU s / 1k | of it the database | server, work left behind included | cores busy |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range results {
		for _, side := range r.Order {
			of := func(number func(*measure.Sample) float64) float64 { return r.Of(side, number).Median }
			perThousand := func(seconds func(*measure.Sample) float64) string {
				return fmt.Sprintf("%.4f", of(func(s *measure.Sample) float64 { return seconds(s) / float64(s.Ops) * 1000 }))
			}
			p99 := r.Of(side, func(s *measure.Sample) float64 { return s.P99 / 1000 })
			row(&b, r.Name, side, rates(r.Of(side, (*measure.Sample).Rate)),
				fmt.Sprintf("%.2f", of(func(s *measure.Sample) float64 { return s.P50 / 1000 })),
				fmt.Sprintf("%.1f (%.1f–%.1f)", p99.Median, p99.Min, p99.Max),
				perThousand(func(s *measure.Sample) float64 { return s.ClientCPU }),
				perThousand(func(s *measure.Sample) float64 { return s.ServerCPU }),
				perThousand(func(s *measure.Sample) float64 { return s.DatabaseCPU }),
				perThousand(func(s *measure.Sample) float64 { return s.ServerCPU + s.ServerCPUAfter }),
				fmt.Sprintf("%.2f", of(func(s *measure.Sample) float64 { return (s.ClientCPU + s.ServerCPU) / s.Seconds })))
		}
	}
	return b.String()
}

func row(b *strings.Builder, cells ...string) {
	b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
}

func budget(value float64, format string) string {
	if value == 0 {
		return "–"
	}
	return fmt.Sprintf(format, value)
}

func rates(s Spread) string {
	return fmt.Sprintf("%s (%s–%s)", short(s.Median), short(s.Min), short(s.Max))
}

// short writes a rate with three digits that count: 948, 12.3 k, 1.05 M.
func short(v float64) string {
	for _, unit := range []struct {
		size float64
		name string
	}{{1e6, " M"}, {1e3, " k"}} {
		if v >= unit.size {
			return digits(v/unit.size) + unit.name
		}
	}
	return digits(v)
}

func digits(v float64) string {
	decimals := 2 - int(math.Floor(math.Log10(math.Max(v, 1))))
	return fmt.Sprintf("%.*f", max(0, decimals), v)
}
