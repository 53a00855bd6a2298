package storage

import (
	"fmt"

	"github.com/warifu/warifu/storage/claim"
)

// CheckBatch refuses what no store takes: more than claim.BatchItemsMax items,
// and a key that is named twice.
func CheckBatch(n int, key func(int) claim.Key) error {
	if n > claim.BatchItemsMax {
		return fmt.Errorf("%w: %d items, at most %d", ErrBatchTooLarge, n, claim.BatchItemsMax)
	}
	if n < 2 {
		return nil
	}
	seen := make(map[claim.Key]struct{}, n)
	for i := range n {
		k := key(i)
		if _, ok := seen[k]; ok {
			return ErrRepeatedKey
		}
		seen[k] = struct{}{}
	}
	return nil
}
