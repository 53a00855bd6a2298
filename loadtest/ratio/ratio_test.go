package ratio

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warifu/warifu/loadtest/measure"
)

func TestSpreadOf(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name   string
		values []float64
		want   Spread
	}{
		{"One", []float64{3}, Spread{3, 3, 3}},
		{"Odd", []float64{5, 1, 3}, Spread{3, 1, 5}},
		{"Even", []float64{4, 1, 2, 9}, Spread{3, 1, 9}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			given := append([]float64(nil), row.values...)
			if got := SpreadOf(row.values); got != row.want {
				t.Errorf("spread = %+v, want %+v", got, row.want)
			}
			if d := cmp.Diff(given, row.values); d != "" {
				t.Errorf("the values were changed (-before +after):\n%s", d)
			}
		})
	}
	if got := SpreadOf(nil); !math.IsNaN(got.Median) {
		t.Errorf("the median of nothing = %v", got.Median)
	}
}

// sides returns a side of given rates, one for each round, that notes its turns.
func side(name string, turns *[]string, rates ...int64) Side {
	return Side{Name: name, Measure: func(_ context.Context, round int) (measure.Sample, error) {
		*turns = append(*turns, name)
		return measure.Sample{Ops: rates[round], Seconds: 1, ClientCPU: 1, ServerCPU: 1}, nil
	}}
}

func ignore(string) {}

// TestRun: sides take turns, the first round does not count, and ratios are
// taken within a round: medians of each side alone would say 1.
func TestRun(t *testing.T) {
	t.Parallel()
	var turns []string
	c := Comparison{ID: "P0", Unit: "claims", Ours: "a", Against: "b", Budget: 2}
	e := Experiment{Name: "P0", Sides: []Side{side("a", &turns, 7, 100, 200, 300), side("b", &turns, 1, 50, 300, 200)}, Comparisons: []Comparison{c}}
	r, err := e.Run(t.Context(), 3, ignore)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(turns, ""); got != "abababab" {
		t.Errorf("turns = %s", got)
	}
	if got, want := r.Ratio(&c), (Spread{1.5, 200.0 / 300, 2}); got != want {
		t.Errorf("ratio = %+v, want %+v", got, want)
	}
	if got := r.CPURatio(&c).Median; got != 1.5 {
		t.Errorf("CPU ratio = %v, want 1.5", got)
	}
	if got, want := r.Of("a", (*measure.Sample).Rate), (Spread{200, 100, 300}); got != want {
		t.Errorf("rates = %+v, want %+v", got, want)
	}
}

func TestRunFails(t *testing.T) {
	t.Parallel()
	var turns []string
	broken := errors.New("broken")
	bad := Side{Name: "bad", Measure: func(context.Context, int) (measure.Sample, error) { return measure.Sample{}, broken }}
	e := Experiment{Name: "P0", Sides: []Side{bad}}
	if _, err := e.Run(t.Context(), 1, ignore); !errors.Is(err, broken) {
		t.Errorf("error = %v, want the side's", err)
	}
	idle := Experiment{Name: "P0", Sides: []Side{side("idle", &turns, 0, 0)}}
	if _, err := idle.Run(t.Context(), 1, ignore); err == nil {
		t.Error("a side that did nothing was taken for a result")
	}
}

func TestVerdict(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		value, budget float64
		want          string
	}{{2, 2, "pass"}, {1.999, 2, "**short**"}, {math.NaN(), 2, "**short**"}, {0.1, 0, "–"}} {
		if got := Verdict(row.value, row.budget); got != row.want {
			t.Errorf("Verdict(%v, %v) = %s, want %s", row.value, row.budget, got, row.want)
		}
	}
}

func TestShort(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{0: "0.00", 9.87: "9.87", 948: "948", 12_345: "12.3 k", 999_600: "1000 k", 1_050_000: "1.05 M"} {
		if got := short(v); got != want {
			t.Errorf("short(%v) = %s, want %s", v, got, want)
		}
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	r := &Result{
		Name: "P0", Order: []string{"a", "b"},
		Samples: map[string][]measure.Sample{
			"a": {{Ops: 30_000, Seconds: 2, P50: 1500, P99: 9000, ClientCPU: 0.9, ServerCPU: 1.5, ServerCPUAfter: 0.3, DatabaseCPU: 1.2, Extra: map[string]float64{"skipped": 99.5}}},
			"b": {{Ops: 10_000, Seconds: 2, ClientCPU: 0.9, ServerCPU: 1.5}},
		},
		Comparisons: []Comparison{{ID: "P0", Unit: "claims", Ours: "a", Against: "b", Budget: 3.5}},
		Floors:      []Floor{{ID: "P0", What: "skipped, %", Side: "a", Key: "skipped", Budget: 99}},
	}
	wantTable := `| # | ours | against | ours, per s | theirs, per s | ratio | budget | | CPU ratio |
|---|---|---|---|---|---|---|---|---|
| P0 | a, claims | b | 15.0 k (15.0 k–15.0 k) | 5.00 k (5.00 k–5.00 k) | **3.00×** (3.00–3.00) | ≥ 3.50× | **short** | 3.00× |
| P0 | skipped, % |  | 99.5 (99.5–99.5) |  |  | ≥ 99 | pass |  |
`
	if d := cmp.Diff(wantTable, Table([]*Result{r})); d != "" {
		t.Errorf("table (-want +got):\n%s", d)
	}
	wantRow := "| P0 | a | 15.0 k (15.0 k–15.0 k) | 1.50 | 9.0 (9.0–9.0) | 0.0300 | 0.0500 | 0.0400 | 0.0600 | 1.20 |\n"
	if got := Costs([]*Result{r}); !strings.Contains(got, wantRow) {
		t.Errorf("costs lack %q:\n%s", wantRow, got)
	}
}
