package overload

import (
	"cmp"
	"slices"
	"time"
)

// Bounds of a window: the time between two looks of the controller.
const (
	// windowMin is long against one call and short against an overload;
	// windowMax ends a window in which too few calls ended.
	windowMin = 100 * time.Millisecond
	windowMax = time.Second
	// windowSamples is how many calls must have ended for windowMin to do.
	windowSamples = 16
	// windowDense is how many samples are enough to take only one call in
	// denseStep from then on: a busy server need not read the clock twice for
	// each call.
	windowDense = 64
	denseStep   = 8
	// samplesMax is how many durations a window keeps: the latest ones.
	samplesMax = 256
	// medianMin is the fewest samples that a median is taken of.
	medianMin = 5
)

// kind is a class of calls and a size of batch: calls that should take about
// equally long.
type kind uint8

// sizes are the largest batches of each size but the last.
var sizes = [...]int{1, 16, 128}

const kinds = Classes * (len(sizes) + 1)

func kindOf(class Class, items int) kind {
	size := 0
	for size < len(sizes) && items > sizes[size] {
		size++
	}
	return kind(int(class)*(len(sizes)+1) + size) //nolint:gosec // below kinds
}

func (k kind) class() Class { return Class(k / kind(len(sizes)+1)) }

// sample is one call that the store answered.
type sample struct {
	kind kind
	took time.Duration
}

// window keeps the latest samples since it was cleared.
type window struct {
	seen    int
	samples [samplesMax]sample
	scratch [samplesMax]float64
}

func (w *window) add(s sample) {
	w.samples[w.seen%samplesMax] = s
	w.seen++
}

func (w *window) clear() { w.seen = 0 }

func (w *window) kept() []sample { return w.samples[:min(w.seen, samplesMax)] }

// eachKind calls visit with the median of each kind that has medianMin samples,
// and with how many it has. It sorts the samples.
func (w *window) eachKind(visit func(k kind, n int, median time.Duration)) {
	kept := w.kept()
	slices.SortFunc(kept, func(a, b sample) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.took, b.took))
	})
	for len(kept) > 0 {
		n := 1
		for n < len(kept) && kept[n].kind == kept[0].kind {
			n++
		}
		if n >= medianMin {
			visit(kept[0].kind, n, max(1, kept[n/2].took))
		}
		kept = kept[n:]
	}
}

// median of what of says of each sample; 0 if there are fewer than medianMin.
func (w *window) median(of func(sample) float64) float64 {
	all := w.scratch[:0]
	for _, s := range w.kept() {
		all = append(all, of(s))
	}
	if len(all) < medianMin {
		return 0
	}
	slices.Sort(all)
	return all[len(all)/2]
}
