package sqlstore_test

import (
	"flag"
	"os"
)

// historiesShort is how many random histories an ordinary run makes; a long one
// makes rapid's own number. Each opens a store for every way of running it.
const historiesShort = "3"

// soak: the long form of tests that have one.
func soak() bool { return os.Getenv("WARIFU_SOAK") != "" }

// short makes a run short, unless it is told how long it is to be.
func short() error {
	given := soak()
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
	if given {
		return nil
	}
	return flag.Set("rapid.checks", historiesShort)
}
