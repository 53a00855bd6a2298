package main

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/warifu/warifu/storage/sqlstore"
)

// The values of filter.
const (
	filterOn  = "on"
	filterOff = "off"
)

// Bounds of what is configured of SQL stores.
const (
	connsMax        = 1000
	storeTimeoutMin = 10 * time.Millisecond
	storeTimeoutMax = time.Minute // the server gives a batch no more
	filterMemoryMin = 1 << 20
	filterMemoryMax = 64 << 30
)

// storeFlags adds --config and what is configured of stores: for commands that
// look after one.
func storeFlags(cmd *cobra.Command) {
	cmd.Flags().String("config", "", "YAML configuration file (WARIFU_CONFIG)")
	for _, s := range settings {
		if strings.HasPrefix(s.key, "store") {
			s.bind(cmd, serveDefault)
		}
	}
}

// oneStore makes store and store_file one setting: whichever the later layer
// has is in force, and one layer that has both is refused.
func oneStore(layers []map[string]any) error {
	for _, layer := range layers[1:] {
		store, file := isSet(layer["store"]), isSet(layer["store_file"])
		switch {
		case store && file:
			return errors.New("store and store_file are both given; give one of them")
		case store:
			layer["store_file"] = ""
		case file:
			layer["store"] = ""
		}
	}
	return nil
}

// isSet: an empty variable is one that is not set.
func isSet(value any) bool { return value != nil && value != "" }

// validateStore finds out which store is meant, and reports all faults.
func (c *config) validateStore() error {
	var faults []error
	fault := func(key, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%s: %s", key, fmt.Sprintf(format, args...)))
	}
	if err := c.findTarget(); err != nil {
		faults = append(faults, err)
	}
	for key, n := range map[string]count{"store_conns": c.Conns, "store_sweep_conns": c.SweepConns} {
		if n < 1 || n > connsMax {
			fault(key, "%d is not within 1-%d", n, connsMax)
		}
	}
	for key, d := range map[string]time.Duration{
		"store_timeout": c.StoreTimeout, "store_connect_timeout": c.ConnectTimeout, "store_acquire_timeout": c.AcquireTimeout,
	} {
		if d < storeTimeoutMin || d > storeTimeoutMax {
			fault(key, "%v is not within %v-%v", d, storeTimeoutMin, storeTimeoutMax)
		}
	}
	switch sqlstore.Isolation(c.Isolation) {
	case "", sqlstore.ReadCommitted, sqlstore.Serializable:
	default:
		fault("store_isolation", "%q is not %q or %q", c.Isolation, sqlstore.ReadCommitted, sqlstore.Serializable)
	}
	if c.Filter != filterOn && c.Filter != filterOff {
		fault("filter", "%q is not on or off", c.Filter)
	}
	if c.FilterMemory < filterMemoryMin || c.FilterMemory > filterMemoryMax {
		fault("filter_memory", "%d bytes are not within 1MiB-64GiB", c.FilterMemory)
	}
	return errors.Join(faults...)
}

// findTarget sets the target from store, store_file and data.
func (c *config) findTarget() error {
	name := c.Store
	if c.StoreFile != "" {
		var err error
		if name, err = readSecretFile(c.StoreFile); err != nil {
			return fmt.Errorf("store_file: %w", err)
		}
		if name == "" {
			return fmt.Errorf("store_file: %s is empty", c.StoreFile)
		}
	}
	if name == "" {
		c.target = target{dir: c.Data}
		return nil
	}
	var err error
	if c.target, err = parseTarget(name); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	if isSet(c.given["data"]) && (c.target.sql() || filepath.Clean(c.target.dir) != filepath.Clean(c.Data)) {
		return fmt.Errorf("store: it is %s, and data is %s; give one of them", c.target, c.Data)
	}
	if !c.target.sql() {
		c.Data = c.target.dir
	}
	return nil
}

// pageTokenKey is nil where none is configured: the server draws one then.
func (c *config) pageTokenKey() ([]byte, error) {
	if c.PageTokenFile == "" {
		return nil, nil
	}
	key, err := readSecretFile(c.PageTokenFile)
	if err == nil && key == "" {
		err = errors.New("is empty")
	}
	if err != nil {
		return nil, exit(exitUsage, fmt.Errorf("page_token_key_file: %w", err))
	}
	return []byte(key), nil
}

// count is a number that may be written as text, as variables and flags are.
type count int32

func decodeCount(from, to reflect.Type, value any) (any, error) {
	if to != reflect.TypeFor[count]() || from.Kind() != reflect.String {
		return value, nil
	}
	n, err := strconv.ParseInt(value.(string), 10, 32)
	if err != nil {
		return nil, fmt.Errorf("%q is not a number", value)
	}
	return count(n), nil
}

// byteSize is a number of bytes, written with its unit.
type byteSize int64

var byteUnits = []struct {
	name  string
	shift int
}{{"KiB", 10}, {"MiB", 20}, {"GiB", 30}}

func decodeBytes(from, to reflect.Type, value any) (any, error) {
	if to != reflect.TypeFor[byteSize]() {
		return value, nil
	}
	if text, ok := value.(string); ok && from.Kind() == reflect.String {
		for _, unit := range byteUnits {
			number, ok := strings.CutSuffix(text, unit.name)
			n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
			if ok && err == nil && n >= 0 && n <= math.MaxInt64>>unit.shift {
				return byteSize(n << unit.shift), nil
			}
		}
	}
	return nil, fmt.Errorf("%v is not a size such as 64MiB (KiB, MiB, GiB)", value)
}
