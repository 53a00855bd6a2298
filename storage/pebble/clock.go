package pebble

import (
	"time"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storetime"
)

// clock is the store's time, read from the wall clock of the machine.
type clock struct {
	wall func() time.Time
	*storetime.Clock
}

// now returns the store's time and whether it is suspect.
func (c *clock) now() (claim.Time, bool) { return c.Read(claim.FromTime(c.wall())) }
