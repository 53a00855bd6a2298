package main

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-viper/mapstructure/v2"
	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// config is the server's configuration. Defaults are overridden by the YAML
// file, that by WARIFU_* variables, those by flags. An unknown name is an
// error at each of these places: a misspelt setting is never a default.
type config struct {
	Listen          string         `koanf:"listen"`
	MetricsListen   string         `koanf:"metrics_listen"`
	Data            string         `koanf:"data"`
	Store           string         `koanf:"store"`
	StoreFile       string         `koanf:"store_file"`
	Conns           count          `koanf:"store_conns"`
	SweepConns      count          `koanf:"store_sweep_conns"`
	Isolation       string         `koanf:"store_isolation"`
	StoreTimeout    time.Duration  `koanf:"store_timeout"`
	ConnectTimeout  time.Duration  `koanf:"store_connect_timeout"`
	AcquireTimeout  time.Duration  `koanf:"store_acquire_timeout"`
	Filter          string         `koanf:"filter"`
	FilterMemory    byteSize       `koanf:"filter_memory"`
	PageTokenFile   string         `koanf:"page_token_key_file"`
	LogLevel        string         `koanf:"log_level"`
	LogFormat       string         `koanf:"log_format"`
	DrainDelay      time.Duration  `koanf:"drain_delay"`
	ShutdownTimeout time.Duration  `koanf:"shutdown_timeout"`
	Tenants         []tenantConfig `koanf:"tenants"`
	platformConfig  `koanf:",squash"`

	written map[string]any // all layers together, as they were written
	given   map[string]any // the same without the defaults
	target  target         // what data, store and store_file come to
}

// setting is a configuration value that is also a variable and a flag.
type setting struct {
	key, help string
	dev       string // default of `warifu dev`
	serve     string // default of `warifu serve`
}

func (s setting) variable() string { return envPrefix + strings.ToUpper(s.key) }
func (s setting) flag() string     { return strings.ReplaceAll(s.key, "_", "-") }

const envPrefix = "WARIFU_"

// settings are all of them. dev asks for nothing but its port, so that it runs
// beside anything else: its metrics are off, and it stops without a delay.
var settings = append([]setting{
	{"listen", "address of the API, health and reflection", "127.0.0.1:8080", "127.0.0.1:8080"},
	{"metrics_listen", "address of /metrics, and of /debug/pprof where it is loopback; empty: off", "", "127.0.0.1:9090"},
	{"data", "folder of the embedded store", "./warifu-data", "./warifu-data"},
	{"store", "where claims are kept: pebble:DIR, cockroach://… or postgres://…; empty: in data", "", ""},
	{"store_file", "file with the store's URL, to keep its password out of lists of processes and variables", "", ""},
	{"store_conns", "SQL stores: connections for traffic", "16", "16"},
	{"store_sweep_conns", "SQL stores: further connections, for sweeps and lists", "2", "2"},
	{"store_isolation", "SQL stores: read committed or serializable; empty: what suits the database", "", ""},
	{"store_timeout", "SQL stores: how long a call may take, with all its retries", "5s", "5s"},
	{"store_connect_timeout", "SQL stores: how long making a connection may take", "5s", "5s"},
	{"store_acquire_timeout", "SQL stores: how long a call waits for a connection when all are in use", "250ms", "250ms"},
	{"filter", "SQL stores: on or off: a Bloom filter that guesses which trip comes first", filterOn, filterOn},
	{"filter_memory", "SQL stores: memory of the filter, such as 64MiB", "64MiB", "64MiB"},
	{"page_token_key_file", "file with 16 bytes or more, the same for all servers of one store: they take each other's page tokens", "", ""},
	{"log_level", "debug, info, warn or error", "warn", "info"},
	{"log_format", "auto (text on a terminal, else JSON), text or json", logAuto, logAuto},
	{"drain_delay", "after SIGTERM: how long to serve on while /readyz already says no", "0s", "5s"},
	{"shutdown_timeout", "after the drain delay: how long requests under way may take", "10s", "20s"},
}, platformSettings...)

// clientVariables are the other variables this program reads.
var clientVariables = []string{"WARIFU_URL", "WARIFU_API_KEY", "WARIFU_API_KEY_FILE", "WARIFU_CONFIG", "WARIFU_CONTEXT"}

// injected are variables that Kubernetes sets for a service whose name begins
// with "warifu". They are nobody's mistake.
var injected = regexp.MustCompile(`_SERVICE_HOST$|_SERVICE_PORT(_.*)?$|_PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?$`)

// configFlags adds --config and a flag for every setting.
func configFlags(cmd *cobra.Command, defaultOf func(setting) string) {
	cmd.Flags().String("config", "", "YAML configuration file (WARIFU_CONFIG)")
	for _, s := range settings {
		s.bind(cmd, defaultOf)
	}
}

func (s setting) bind(cmd *cobra.Command, defaultOf func(setting) string) {
	cmd.Flags().String(s.flag(), defaultOf(s), s.help+" ("+s.variable()+")")
	if s.key == "insecure_listen" {
		cmd.Flags().Lookup(s.flag()).NoOptDefVal = "true"
	}
}

// loadConfig reads and checks everything; all faults are reported together.
func loadConfig(sys *system, flags *pflag.FlagSet, defaultOf func(setting) string) (*config, error) {
	layers, err := readLayers(sys, flags, defaultOf)
	if err != nil {
		return nil, err
	}
	k, given := koanf.New("."), map[string]any{}
	for i, layer := range layers {
		if err := k.Load(confmap.Provider(layer, "."), nil); err != nil {
			return nil, exit(exitUsage, fmt.Errorf("configuration: %w", err))
		}
		if i > 0 {
			maps.Copy(given, layer)
		}
	}
	c := config{given: given}
	err = k.UnmarshalWithConf("", &c, koanf.UnmarshalConf{DecoderConfig: &mapstructure.DecoderConfig{
		TagName: "koanf", ErrorUnused: true,
		DecodeHook: mapstructure.ComposeDecodeHookFunc(decodeDuration, decodeTime, decodeCount, decodeBytes, decodeLimit, decodeBool),
	}})
	if err == nil {
		err = errors.Join(c.validate(), c.validateStore(), c.validatePlatform())
	}
	if err != nil {
		return nil, exit(exitUsage, fmt.Errorf("configuration: %w", err))
	}
	c.written = k.Raw()
	return &c, nil
}

// readLayers returns defaults, file, environment and flags, in this order.
func readLayers(sys *system, flags *pflag.FlagSet, defaultOf func(setting) string) ([]map[string]any, error) {
	defaults, set := map[string]any{}, map[string]any{}
	for _, s := range settings {
		defaults[s.key] = defaultOf(s)
		if f := flags.Lookup(s.flag()); f != nil && f.Changed {
			set[s.key] = f.Value.String()
		}
	}
	environment, err := readEnvironment(sys)
	if err != nil {
		return nil, exit(exitUsage, err)
	}
	path := sys.env("WARIFU_CONFIG")
	if f := flags.Lookup("config"); f != nil && f.Changed {
		path = f.Value.String()
	}
	fromFile, err := readConfigFile(path)
	if err != nil {
		return nil, exit(exitUsage, err)
	}
	layers := []map[string]any{defaults, fromFile, environment, set}
	if err := oneStore(layers); err != nil {
		return nil, exit(exitUsage, err)
	}
	return layers, nil
}

func readConfigFile(path string) (map[string]any, error) {
	if path == "" {
		return map[string]any{}, nil
	}
	k := koanf.New(".")
	if err := k.Load(file.Provider(path), yaml.Parser()); err != nil {
		return nil, fmt.Errorf("configuration file %s: %w", path, err)
	}
	return k.Raw(), nil
}

func readEnvironment(sys *system) (map[string]any, error) {
	known := map[string]string{}
	for _, s := range settings {
		known[s.variable()] = s.key
	}
	values := map[string]any{}
	var faults []error
	for _, entry := range sys.environ {
		name, value, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, envPrefix) || slices.Contains(clientVariables, name) ||
			slices.Contains(onceVariables, name) || injected.MatchString(name) {
			continue
		}
		key, ok := known[name]
		if !ok {
			faults = append(faults, fmt.Errorf("unknown variable %s; known are %s", name,
				strings.Join(slices.Sorted(maps.Keys(known)), ", ")))
			continue
		}
		values[key] = value
	}
	return values, errors.Join(faults...)
}

// validate reports all faults of the settings; tenants are checked where they
// are built.
func (c *config) validate() error {
	var faults []error
	fault := func(key, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%s: %s", key, fmt.Sprintf(format, args...)))
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		fault("listen", "%q is not host:port", c.Listen)
	}
	if _, _, err := net.SplitHostPort(c.MetricsListen); err != nil && c.MetricsListen != "" {
		fault("metrics_listen", "%q is not host:port; empty turns it off", c.MetricsListen)
	}
	if c.Data == "" {
		fault("data", "is empty")
	}
	if _, err := c.level(); err != nil {
		fault("log_level", "%q is not debug, info, warn or error", c.LogLevel)
	}
	if !slices.Contains([]string{logAuto, logText, logJSON}, c.LogFormat) {
		fault("log_format", "%q is not auto, text or json", c.LogFormat)
	}
	if c.DrainDelay < 0 || c.DrainDelay > drainDelayMax {
		fault("drain_delay", "%v is not within 0s-%v", c.DrainDelay, drainDelayMax)
	}
	if c.ShutdownTimeout <= 0 || c.ShutdownTimeout > shutdownTimeoutMax {
		fault("shutdown_timeout", "%v is not within 1ns-%v", c.ShutdownTimeout, shutdownTimeoutMax)
	}
	return errors.Join(faults...)
}

// Bounds of how long an ending process may take.
const (
	drainDelayMax      = 5 * time.Minute
	shutdownTimeoutMax = 5 * time.Minute
)

func (c *config) level() (slog.Level, error) {
	var level slog.Level
	err := level.UnmarshalText([]byte(c.LogLevel))
	return level, err
}

// decodeDuration reads durations, days included: "36h", "7d", "1d12h".
func decodeDuration(from, to reflect.Type, value any) (any, error) {
	if to != reflect.TypeFor[time.Duration]() {
		return value, nil
	}
	if from.Kind() != reflect.String {
		return nil, fmt.Errorf("%v is not a duration; write it with its unit, such as 30s", value)
	}
	return parseDuration(value.(string))
}

func parseDuration(text string) (time.Duration, error) {
	fault := fmt.Errorf("%q is not a duration such as 30s, 36h, 7d or 1d12h", text)
	days, rest, ok := strings.Cut(text, "d")
	if !ok {
		d, err := time.ParseDuration(text)
		if err != nil {
			return 0, fault
		}
		return d, nil
	}
	// A number alone: what came with units before the days would be taken for days.
	if strings.Trim(days, "0123456789.") != "" || strings.ContainsAny(rest, "+-") {
		return 0, fault
	}
	total, err := time.ParseDuration(days + "h")
	if err != nil || total > daysMax*time.Hour {
		return 0, fault
	}
	total *= 24
	if rest == "" {
		return total, nil
	}
	d, err := time.ParseDuration(rest)
	if err != nil || d > math.MaxInt64-total {
		return 0, fault
	}
	return total + d, nil
}

// daysMax keeps a duration in days within an int64 of nanoseconds.
const daysMax = 100_000

// decodeTime reads RFC 3339 instants, which YAML may have parsed already.
func decodeTime(_, to reflect.Type, value any) (any, error) {
	text, ok := value.(string)
	if !ok || to != reflect.TypeFor[time.Time]() {
		return value, nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return nil, fmt.Errorf("%q is not an instant such as 2027-01-31T00:00:00Z", text)
	}
	return t, nil
}

// readSecretFile reads a one-line secret.
func readSecretFile(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read secret: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}
