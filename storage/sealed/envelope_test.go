package sealed

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// goldens were sealed once, and are never made anew.
var goldens = map[string]struct{ plain, mark, body string }{
	"by attempt": {
		plain: "a result",
		mark:  "AQABAgMEs3fUg8pOaViBiL0vMFCuoZubtjdelJ1qGOg219I2zIh0eJWoh7MafEBN3H1UDLxNGkXpfCAHYL2Vz0q9",
		body:  "010001020304250cf701922194c9e61fd2edf6872401951d787f443a713ed30d22d537c4606ab7101788",
	},
	"by fence": {
		plain: "a result",
		mark:  "AQIBAgMEj37UC9iCFtMPbpCJuw1QHaZb-52eH2ne5y_BppUCqp6qs58TqjpAmpNf2au92MRKZ6omzbD_CyVUy2zY",
		body:  "0102010203048011dc174bb5e086a7157335b87137f4d0fb8ac8f7b0fc69fb1a9ae3274d35748e8b220d",
	},
	"compressed": {
		plain: strings.Repeat("result ", 80),
		mark:  "AQABAgMETUDxeq3KvCfAVg6ozmdEmCTetkQfIF5040tNnTL5PR8EFhFZRHnfWV_yKSlZIW02vOdEplqHxhCQrRjY",
		body:  "010101020304389af4cc98ff2740e016046c5a31c4de9c0d8e7ef2cb3af19c9fab4cdb2b46ed86163e2a7fcc4d90b829fa01b4dd0d832480c4a5f1ce",
	},
}

// TestFormat pins what is on disk: a result that an earlier version has sealed.
func TestFormat(t *testing.T) {
	t.Parallel()
	dk := NewDataKey(0x01020304, [32]byte{0: 1, 31: 2})
	rec := claim.Record{Key: key(7, "inventory", "order-1"), AttemptID: attempt(1), Fence: 9, State: claim.Completed}
	for name, stored := range goldens {
		body, err := hex.DecodeString(stored.body)
		if err != nil {
			t.Fatal(err)
		}
		rec.Completion = &claim.Completion{
			Outcome: claim.Succeeded, ContentType: sealedPrefix + stored.mark + "text/plain", Metadata: []claim.Pair{{Name: "n", Value: "v"}}, Body: body,
		}
		want := result(stored.plain)
		if c, err := openCompletion(dk, &rec); err != nil || !c.Same(want) || string(c.Body) != stored.plain {
			t.Errorf("%s: %v, %+v", name, err, c)
		}
	}
}

func TestCompression(t *testing.T) {
	t.Parallel()
	random := make([]byte, claim.ResultBytesMax)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range random {
		random[i] = byte(r.Uint32())
	}
	mixed := append(bytes.Clone(random[:950]), make([]byte, 50)...)
	for _, c := range []struct {
		name  string
		body  []byte
		small bool
	}{
		{"one below the limit", make([]byte, zipMin-1), false},
		{"at the limit", make([]byte, zipMin), true},
		{"random", random[:4096], false},
		{"by less than it is worth", mixed, false},
		{"the largest", make([]byte, claim.ResultBytesMax), true},
		{"the largest, text", []byte(strings.Repeat("0123456789abcdef", claim.ResultBytesMax/16)), true},
		{"the largest, random", random, false},
	} {
		small := shrink(c.body)
		if (small != nil) != c.small {
			t.Errorf("%s: %d bytes become %d", c.name, len(c.body), len(small))
			continue
		}
		if small == nil {
			continue
		}
		if back, err := grow(small); err != nil || !bytes.Equal(back, c.body) {
			t.Errorf("%s: %v, %d bytes", c.name, err, len(back))
		}
	}
}

// TestBombs: what would grow beyond a body's limit is damaged, whether its frame
// says so or not.
func TestBombs(t *testing.T) {
	t.Parallel()
	big := make([]byte, 64<<20)
	var streamed bytes.Buffer // in windows that a body may have
	enc, err := zstd.NewWriter(&streamed, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(64<<10))
	if err != nil {
		t.Fatal(err)
	}
	for range 16 {
		if _, err := enc.Write(big[:4<<20]); err != nil {
			t.Fatal(err)
		}
	}
	if err := enc.Close(); err != nil {
		t.Fatal(err)
	}
	one := make([]byte, claim.ResultBytesMax+1)
	for name, bomb := range map[string][]byte{
		"64 MiB": enc.EncodeAll(big, nil), "64 MiB, unsaid": streamed.Bytes(), "one byte more": enc.EncodeAll(one, nil), "no frame": []byte("hello, world"),
	} {
		if body, err := grow(bomb); !errors.Is(err, storage.ErrDamaged) {
			t.Errorf("%s: %v, %d bytes", name, err, len(body))
		}
	}
}

// TestNoncesDiffer, and so does all that is made with them.
func TestNoncesDiffer(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	k, c := key(1, "own", "e"), result("a result")
	for range 100 {
		w, err := sealCompletion(anyKey(1, "own", 7), &k, bind{attempt: attempt(1)}, c)
		if err != nil {
			t.Fatal(err)
		}
		e, err := parseEnvelope(w.Body)
		if err != nil || seen[string(e.nonce)] || seen[w.ContentType] {
			t.Fatalf("%v, %x", err, e.nonce)
		}
		seen[string(e.nonce)], seen[w.ContentType] = true, true
	}
}

func FuzzEnvelope(f *testing.F) {
	// The same in every process that takes part.
	dk, k, g := NewDataKey(0x01020304, [32]byte{0: 1, 31: 2}), key(7, "inventory", "order-1"), goldens["compressed"]
	c := result(g.plain)
	body, err := hex.DecodeString(g.body)
	if err != nil {
		f.Fatal(err)
	}
	w := claim.Completion{ContentType: sealedPrefix + g.mark + c.ContentType, Body: body}
	f.Add([]byte(nil), "")
	f.Add(w.Body, w.ContentType)
	f.Add(w.Body[:Overhead], w.ContentType[:markerLen])
	f.Fuzz(func(t *testing.T, body []byte, contentType string) {
		if e, err := parseEnvelope(body); err == nil && len(e.head)+len(e.nonce)+len(e.ciphertext) != len(body) || err != nil && !errors.Is(err, storage.ErrDamaged) {
			t.Fatalf("%v, %+v", err, e)
		}
		_ = original(contentType)
		if got := unescape(escape(contentType)); got != contentType {
			t.Fatalf("%q became %q", contentType, got)
		}
		if isSealed(escape(contentType)) {
			t.Fatalf("%q is taken for sealed", contentType)
		}
		if !isSealed(contentType) {
			return
		}
		rec := claim.Record{Key: k, State: claim.Completed, AttemptID: attempt(1), Completion: &claim.Completion{
			Outcome: c.Outcome, Metadata: c.Metadata, ContentType: contentType, Body: body,
		}}
		got, err := openCompletion(dk, &rec)
		switch {
		case err != nil && !errors.Is(err, storage.ErrDamaged):
			t.Fatal(err)
		case err == nil && contentType != w.ContentType, err == nil && len(body) > 0 && !bytes.Equal(body, w.Body):
			t.Fatalf("opens, and was never sealed: %+v", got)
		}
	})
}
