package storagetest

import (
	"context"
	"errors"
	"fmt"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// claimRoundsMax bounds how often one claim looks again. Alone, two rounds are
// enough for every decision.
const claimRoundsMax = 8

var errUndecided = errors.New("claim: undecided; others keep changing the record")

// Claim is the loop that answers claims, in its plainest form: insert or get,
// decide, and where a swap is needed, replace and decide again. server/arbiter
// does the same for many callers at once; this one is for tests of stores. The
// keys of reqs are distinct.
func Claim(ctx context.Context, store storage.Store, reqs []claim.Request) ([]claim.Answer, error) {
	answers := make([]claim.Answer, len(reqs))
	insert, swaps := make([]int, 0, len(reqs)), map[int]claim.Swap{}
	for i := range reqs {
		insert = append(insert, i)
	}
	for range claimRoundsMax {
		found, err := round(ctx, store, reqs, insert, swaps)
		if err != nil {
			return nil, err
		}
		insert, swaps = nil, map[int]claim.Swap{}
		for i, f := range found {
			if f.Err != nil {
				return nil, fmt.Errorf("claim, item %d: %w", i, f.Err)
			}
			step := claim.Decide(&f.Record, &reqs[i], f.Now)
			switch {
			case step.Insert:
				insert = append(insert, i)
			case step.Swap.Kind != claim.NoSwap:
				swaps[i] = step.Swap
			default:
				answers[i] = step.Answer
			}
		}
		if len(insert) == 0 && len(swaps) == 0 {
			return answers, nil
		}
	}
	return nil, errUndecided
}

// round makes the trips that are due: at most one insert and one replace. It
// returns what was found for each request that had one.
func round(ctx context.Context, store storage.Store, reqs []claim.Request, insert []int, swaps map[int]claim.Swap) (map[int]storage.Found, error) {
	out := map[int]storage.Found{}
	if len(insert) > 0 {
		send := make([]claim.Request, len(insert))
		for j, i := range insert {
			send[j] = reqs[i]
		}
		found, err := store.InsertOrGet(ctx, send)
		if err != nil {
			return nil, fmt.Errorf("claim: %w", err)
		}
		for j, i := range insert {
			out[i] = found[j]
		}
	}
	if len(swaps) > 0 {
		var send []claim.Swap
		var places []int
		for i := range reqs {
			if s, ok := swaps[i]; ok {
				send, places = append(send, s), append(places, i)
			}
		}
		found, err := store.Replace(ctx, send)
		if err != nil {
			return nil, fmt.Errorf("claim: %w", err)
		}
		for j, i := range places {
			out[i] = found[j]
		}
	}
	return out, nil
}

// Move sends transitions and explains what the store did. The keys of ts are
// distinct.
func Move(ctx context.Context, store storage.Store, ts []claim.Transition) ([]claim.Reply, error) {
	found, err := store.Transition(ctx, ts)
	if err != nil {
		return nil, fmt.Errorf("transition: %w", err)
	}
	replies := make([]claim.Reply, len(ts))
	for i := range found {
		f := &found[i]
		if f.Err != nil {
			return nil, fmt.Errorf("transition, item %d: %w", i, f.Err)
		}
		if f.Applied {
			replies[i] = ts[i].Applied(&f.Record, f.Now)
			continue
		}
		reply, again := ts[i].Explain(&f.Record, f.Now)
		if again {
			return nil, fmt.Errorf("transition, item %d: missed a record that it applies to: %s", i, show(f.Record))
		}
		replies[i] = reply
	}
	return replies, nil
}
