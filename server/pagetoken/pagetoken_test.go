package pagetoken

import (
	"bytes"
	"strings"
	"testing"
)

func TestTokenIsBound(t *testing.T) {
	t.Parallel()
	s, other := New(bytes.Repeat([]byte{1}, KeyBytesMin)), New(bytes.Repeat([]byte{2}, KeyBytesMin))
	parts := func(texts ...string) (out [][]byte) {
		for _, p := range texts {
			out = append(out, []byte(p))
		}
		return out
	}
	token := s.Seal([]byte("cursor"), parts("tenant", "ab", "c")...)
	if got, ok := s.Open(token, parts("tenant", "ab", "c")...); !ok || string(got) != "cursor" {
		t.Fatalf("its own token opens to %q, %v", got, ok)
	}
	for name, bound := range map[string][][]byte{
		"another tenant": parts("tenanT", "ab", "c"), "parts cut elsewhere": parts("tenant", "a", "bc"),
		"parts joined": parts("tenant", "abc"), "a part more": parts("tenant", "ab", "c", ""), "nothing": nil,
	} {
		if _, ok := s.Open(token, bound...); ok {
			t.Errorf("opens for %s", name)
		}
	}
	if _, ok := other.Open(token, parts("tenant", "ab", "c")...); ok {
		t.Error("opens with another key")
	}
	for i := range token {
		flipped := []byte(token)
		flipped[i] ^= 1
		if _, ok := s.Open(string(flipped), parts("tenant", "ab", "c")...); ok {
			t.Errorf("opens with character %d changed", i)
		}
	}
	for _, bad := range []string{"", "!", "AAAA", token + "=", strings.Repeat("A", CharsMax+1)} {
		if _, ok := s.Open(bad, parts("tenant", "ab", "c")...); ok {
			t.Errorf("%.20q opens", bad)
		}
	}
}
