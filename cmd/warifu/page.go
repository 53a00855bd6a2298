package main

import (
	"context"
	"io"
	"net/http"
	"time"
)

// page is the reply to a plain GET, whatever its status.
type page struct {
	status int
	body   string
	date   time.Time // zero when the server does not say
}

// pageBytesMax is enough for every health page.
const pageBytesMax = 16 << 10

func get(ctx context.Context, url string) (page, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return page{}, err
	}
	req.Close = true // one page, one connection
	reply, err := http.DefaultClient.Do(req)
	if err != nil {
		return page{}, err
	}
	defer reply.Body.Close() //nolint:errcheck // it has been read by then
	body, err := io.ReadAll(io.LimitReader(reply.Body, pageBytesMax))
	if err != nil {
		return page{}, err
	}
	out := page{status: reply.StatusCode, body: string(body)}
	if date, err := http.ParseTime(reply.Header.Get("Date")); err == nil {
		out.date = date
	}
	return out, nil
}
