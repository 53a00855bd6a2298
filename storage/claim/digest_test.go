package claim

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func ds(pairs ...string) []Digest {
	var out []Digest
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, Digest{Scheme: pairs[i], Value: []byte(pairs[i+1])})
	}
	return out
}

func TestCompare(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule          string
		stored, given []Digest
		want          Agreement
	}{
		{"NeitherGivesAny", nil, nil, Agree},
		{"NeitherGivesAny/Empty", []Digest{}, nil, Agree},
		{"OnlyStored", ds("a", "1"), nil, NoCommon},
		{"OnlyGiven", nil, ds("a", "1"), NoCommon},
		{"OneScheme/Equal", ds("a", "1"), ds("a", "1"), Agree},
		{"OneScheme/Differs", ds("a", "1"), ds("a", "2"), Differ},
		{"OneScheme/OneIsPrefix", ds("a", "1"), ds("a", "12"), Differ},
		{"SameValueOtherScheme", ds("a", "1"), ds("b", "1"), NoCommon},
		{"SchemesAreCaseSensitive", ds("a", "1"), ds("A", "1"), NoCommon},
		{"OneOfTwoCommon/Equal", ds("a", "1", "b", "2"), ds("b", "2", "c", "3"), Agree},
		{"OneOfTwoCommon/Differs", ds("a", "1", "b", "2"), ds("b", "9", "c", "3"), Differ},
		{"TwoCommon/FirstDiffers", ds("a", "1", "b", "2"), ds("a", "9", "b", "2"), Differ},
		{"TwoCommon/LastDiffers", ds("a", "1", "b", "2"), ds("a", "1", "b", "9"), Differ},
		{"OrderDoesNotMatter", ds("a", "1", "b", "2"), ds("b", "2", "a", "1"), Agree},
		{"OrderDoesNotMatter/Differs", ds("a", "1", "b", "2"), ds("b", "1", "a", "2"), Differ},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			if got := Compare(row.stored, row.given); got != row.want {
				t.Errorf("Compare = %d, want %d", got, row.want)
			}
			if got := Compare(row.given, row.stored); got != row.want {
				t.Errorf("the other way round = %d, want %d", got, row.want)
			}
		})
	}
}

func TestUnion(t *testing.T) {
	t.Parallel()
	many := func(from, to int) (out []Digest) {
		for i := from; i < to; i++ {
			out = append(out, Digest{Scheme: fmt.Sprint(i), Value: []byte{1}})
		}
		return out
	}
	for _, row := range []struct {
		rule                string
		stored, given, want []Digest
	}{
		{"NothingNew", ds("a", "1", "b", "2"), ds("b", "2"), ds("a", "1", "b", "2")},
		{"NewSchemesFollow", ds("a", "1"), ds("b", "2", "a", "1", "c", "3"), ds("a", "1", "b", "2", "c", "3")},
		{"StoredValueStays", ds("a", "1"), ds("a", "9"), ds("a", "1")},
		{"SevenAndOne", many(0, 7), many(6, 8), many(0, DigestsMax)},
		{"CapOfEight", many(0, 7), many(6, 12), many(0, DigestsMax)},
		{"FullStaysFull", many(0, 8), many(7, 15), many(0, DigestsMax)},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			if d := cmp.Diff(row.want, union(row.stored, row.given)); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// TestUnionSharesNothing: stored records are shared between readers, so a union
// never writes into spare capacity of the slice that it extends.
func TestUnionSharesNothing(t *testing.T) {
	t.Parallel()
	backing := append(make([]Digest, 0, 4), ds("a", "1")...)
	first, second := union(backing, ds("b", "2")), union(backing, ds("c", "3"))
	if d := cmp.Diff(ds("a", "1", "b", "2"), first); d != "" {
		t.Errorf("the second union changed the first (-want +got):\n%s", d)
	}
	if d := cmp.Diff(ds("a", "1", "c", "3"), second); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// digestSet reads a set as the edge admits it from fuzz bytes: pairs of scheme
// and value from small alphabets, no scheme twice, at most DigestsMax.
func digestSet(data []byte) (out []Digest) {
	for ; len(data) >= 2 && len(out) < DigestsMax; data = data[2:] {
		scheme := string('a' + rune(data[0]%12))
		if !hasScheme(out, scheme) {
			out = append(out, Digest{Scheme: scheme, Value: data[1:2]})
		}
	}
	return out
}

// compareByMap is the contract once more, another way.
func compareByMap(stored, given []Digest) Agreement {
	values := map[string]string{}
	for _, d := range stored {
		values[d.Scheme] = string(d.Value)
	}
	common, differ := 0, 0
	for _, d := range given {
		if v, has := values[d.Scheme]; has {
			common++
			if v != string(d.Value) {
				differ++
			}
		}
	}
	switch {
	case differ > 0:
		return Differ
	case common > 0 || len(stored)+len(given) == 0:
		return Agree
	}
	return NoCommon
}

func FuzzCompare(f *testing.F) {
	for _, seed := range [][3]string{
		{"", "", ""}, {"a1", "", "a1"}, {"a1b2", "b2c3", "c3d4"}, {"a1b2", "b9", "a1"}, {"a1", "b1", "a2b1"},
		{"a1b2c3d4e5f6g7", "g7h8i9j0", "j1"}, {"a1b2c3d4e5f6g7h8", "h8i9", "i0"}, {"a1a2", "a2a1", "m1"},
	} {
		f.Add([]byte(seed[0]), []byte(seed[1]), []byte(seed[2]))
	}
	f.Fuzz(func(t *testing.T, x, y, z []byte) {
		a, b, c := digestSet(x), digestSet(y), digestSet(z)
		got := Compare(a, b)
		if want := compareByMap(a, b); got != want {
			t.Fatalf("Compare(%v, %v) = %d, want %d", a, b, got, want)
		}
		if back := Compare(b, a); got != back {
			t.Fatalf("Compare(%v, %v) = %d, the other way round %d", a, b, got, back)
		}
		if self := Compare(a, a); self != Agree {
			t.Fatalf("Compare(%v, itself) = %d", a, self)
		}
		if got == Agree {
			checkUnion(t, a, b, c)
		}
	})
}

// checkUnion: joining schemes where one agreed only ever knows more. What it
// held stays, what either side refused is still refused.
func checkUnion(t *testing.T, a, b, c []Digest) {
	t.Helper()
	u := union(a, b)
	if len(u) > DigestsMax || len(u) < len(a) {
		t.Fatalf("union(%v, %v) = %v: %d digests", a, b, u, len(u))
	}
	if d := cmp.Diff(a, u[:len(a):len(a)]); d != "" {
		t.Fatalf("union(%v, %v) does not begin with what was stored:\n%s", a, b, d)
	}
	seen := map[string]bool{}
	for _, d := range u {
		if seen[d.Scheme] {
			t.Fatalf("union(%v, %v) = %v: %q twice", a, b, u, d.Scheme)
		}
		seen[d.Scheme] = true
	}
	if Compare(u, a) != Agree || Compare(u, b) != Agree {
		t.Fatalf("union(%v, %v) = %v disagrees with a part", a, b, u)
	}
	if Compare(a, c) == Differ && Compare(u, c) != Differ {
		t.Fatalf("union(%v, %v) forgot to refuse %v", a, b, c)
	}
	if len(u) < DigestsMax && Compare(b, c) == Differ && Compare(u, c) != Differ {
		t.Fatalf("union(%v, %v) forgot what the second refuses of %v", a, b, c)
	}
}
