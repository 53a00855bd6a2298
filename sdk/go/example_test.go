package warifu_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"testing"
	"time"

	warifu "github.com/warifu/warifu/sdk/go"
	"github.com/warifu/warifu/sdk/go/warifutest"
)

func Example() {
	client, err := warifu.New("") // WARIFU_URL and WARIFU_API_KEY
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	result, err := client.Do(context.Background(),
		warifu.Event{Consumer: "inventory", ID: "order-1042"},
		func(ctx context.Context, g warifu.Grant) (warifu.Completion, error) {
			left, err := takeFromStock(ctx, 3, g.Fence)
			return warifu.Completion{Body: fmt.Appendf(nil, "%d left", left)}, err
		})
	switch {
	case result.Accepted: // done now, done before, or refused for good
		fmt.Printf("ack: %s\n", result.Body)
	case errors.Is(err, warifu.ErrMismatch), errors.Is(err, warifu.ErrTooOld):
		fmt.Println("dead-letter:", err)
	default:
		fmt.Println("nack:", err)
	}
}

// A handler says what an error means for the event.
func ExampleHandler() {
	errSoldOut := errors.New("sold out today")
	_ = warifu.Handler(func(ctx context.Context, g warifu.Grant) (warifu.Completion, error) {
		left, err := takeFromStock(ctx, 3, g.Fence)
		switch {
		case errors.Is(err, errSoldOut): // nothing happened, and it may work later
			return warifu.Completion{}, warifu.Retryable(err)
		case left < 0: // refused, whoever asks again
			return warifu.Completion{}, warifu.Reject(warifu.Completion{Body: []byte("no such item")})
		}
		return warifu.Completion{}, err // any other error: nobody knows how far it came
	})
}

// The parts that Do is made of, for work that ends in another place.
func ExampleClient_Claim() {
	client, err := warifu.New("http://127.0.0.1:8080", warifu.WithAPIKey("wf_dev_…"), warifu.WithTimeout(time.Second))
	if err != nil {
		fmt.Println(err) // the key above is none
		return
	}
	ctx := context.Background()
	claim, err := client.Claim(ctx, warifu.Event{Consumer: "billing", ID: "invoice-7"}, warifu.WithLease(5*time.Minute))
	if err != nil {
		log.Fatal(err) // nobody was asked: do not act
	}
	if claim.Decision == warifu.Granted {
		if err := client.Complete(ctx, claim.Grant, warifu.Completion{Body: []byte("paid")}); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// warifu: new client: API key: not printable ASCII
}

func takeFromStock(context.Context, int, int64) (int, error) { return 97, nil }

// The example of the README, run against the real server.
func TestReadme(t *testing.T) {
	t.Parallel()
	srv := warifutest.NewServer(t)
	client := srv.Client()
	order := warifu.Event{Consumer: "inventory", ID: "order-1042"}
	handler := func(ctx context.Context, g warifu.Grant) (warifu.Completion, error) {
		left, err := takeFromStock(ctx, 3, g.Fence)
		return warifu.Completion{Body: fmt.Appendf(nil, "%d left", left)}, err
	}
	for _, replayed := range []bool{false, true} {
		result, err := client.Do(t.Context(), order, handler)
		if err != nil || !result.Accepted || result.Replayed != replayed || string(result.Body) != "97 left" {
			t.Errorf("%+v, %v", result, err)
		}
	}
}
