package sqlstore_test

import (
	"flag"
	"os"
)

// historiesShort is how many random histories an ordinary run makes; a long one
// makes rapid's own number. Each opens a store for every way of running it.
const historiesShort = "6"

// short makes a run short, unless it is told how long it is to be.
func short() error {
	given := os.Getenv("WARIFU_SOAK") != ""
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
	if given {
		return nil
	}
	return flag.Set("rapid.checks", historiesShort)
}
