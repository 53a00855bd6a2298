package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func secretFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestConfigStore(t *testing.T) {
	t.Parallel()
	const db, other = "postgres://u:pw@h/x", "cockroach://u@h/y"
	file := secretFile(t, other+"\n")
	for _, c := range []struct {
		name, yaml string
		environ    []string
		args       []string
		want       target
		data       string
	}{
		{"default", "", nil, nil, target{dir: "./warifu-data"}, "./warifu-data"},
		{"data", "data: d\n", nil, nil, target{dir: "d"}, "d"},
		{"file", "store: " + db + "\n", nil, nil, target{url: db}, "./warifu-data"},
		{"variable", "", []string{"WARIFU_STORE=" + db}, nil, target{url: db}, "./warifu-data"},
		{"flag", "", nil, []string{"--store", db}, target{url: db}, "./warifu-data"},
		{"secret file", "", []string{"WARIFU_STORE_FILE=" + file}, nil, target{url: other}, "./warifu-data"},
		{"later store wins over earlier secret file", "store_file: " + file + "\n", []string{"WARIFU_STORE=" + db}, nil, target{url: db}, "./warifu-data"},
		{"later secret file wins over earlier store", "store: " + db + "\n", nil, []string{"--store-file", file}, target{url: other}, "./warifu-data"},
		{"an empty variable is none", "store: " + db + "\n", []string{"WARIFU_STORE_FILE="}, nil, target{url: db}, "./warifu-data"},
		{"pebble", "", nil, []string{"--store", "pebble:p"}, target{dir: "p"}, "p"},
		{"pebble and the same data", "data: ./p\n", nil, []string{"--store", "pebble:p"}, target{dir: "p"}, "p"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := load(t, c.yaml, c.environ, c.args)
			if err != nil {
				t.Fatal(err)
			}
			if got.target != c.want || got.Data != c.data {
				t.Errorf("target %+v and data %q, want %+v and %q", got.target, got.Data, c.want, c.data)
			}
		})
	}
}

func TestConfigStoreSettings(t *testing.T) {
	t.Parallel()
	c, err := load(t, "store_conns: 7\nfilter_memory: 2 GiB\nstore_isolation: read committed\n",
		[]string{"WARIFU_STORE_SWEEP_CONNS=3", "WARIFU_STORE=postgres://h/x"},
		[]string{"--store-timeout", "2s", "--filter", "off", "--store-connect-timeout", "3s", "--store-acquire-timeout", "40ms"})
	if err != nil {
		t.Fatal(err)
	}
	got := c.sqlConfig(nil)
	if got.URL != "postgres://h/x" || got.Conns != 7 || got.SweepConns != 3 || got.Isolation != "read committed" ||
		got.CallTimeout != 2*time.Second || got.ConnectTimeout != 3*time.Second || got.AcquireTimeout != 40*time.Millisecond {
		t.Errorf("%+v", got)
	}
	if c.FilterMemory != 2<<30 || c.Filter != filterOff {
		t.Errorf("filter %s, %d bytes", c.Filter, c.FilterMemory)
	}
}

func TestConfigStoreFaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, yaml string
		environ    []string
		says       []string
	}{
		{"Scheme", "store: mysql://u:pw@h/x\n", nil, []string{"store: it is pebble:DIR"}},
		{"NotEscaped", "store: postgres://u:pw@pw@h/x\n", nil, []string{"write @ as %40"}},
		{"NoFolder", "store: 'pebble:'\n", nil, []string{"names no folder"}},
		{"Both", "store: postgres://h/x\nstore_file: f\n", nil, []string{"store and store_file are both given"}},
		{"NoFile", "store_file: nowhere\n", nil, []string{"store_file", "nowhere"}},
		{"EmptyFile", "", []string{"WARIFU_STORE_FILE=" + os.DevNull}, []string{"is empty"}},
		{"DataToo", "data: d\n", []string{"WARIFU_STORE=postgres://u:pw@h/x"}, []string{"postgres://u:xxxxx@h/x", "data is d"}},
		{"OtherData", "data: d\nstore: pebble:e\n", nil, []string{"pebble:e", "data is d"}},
		{"DataIsDefault", "data: ./warifu-data\nstore: postgres://h/x\n", nil, []string{"give one of them"}},
		{
			"Bounds", "store_conns: 0\nstore_sweep_conns: 1001\nstore_isolation: snapshot\nstore_timeout: 61s\nstore_connect_timeout: 9ms\n" +
				"store_acquire_timeout: 0s\nfilter: maybe\nfilter_memory: 1KiB\n", nil,
			[]string{"store_conns", "store_sweep_conns", "store_isolation", "store_timeout", "store_connect_timeout", "store_acquire_timeout", "filter:", "filter_memory"},
		},
		{"NotANumber", "", []string{"WARIFU_STORE_CONNS=many"}, []string{`"many" is not a number`}},
		{"NoUnit", "filter_memory: 64\n", nil, []string{"64MiB"}},
		{"TooLarge", "filter_memory: 99999999999GiB\n", nil, []string{"64MiB"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := load(t, c.yaml, c.environ, nil)
			if exitCodeOf(err) != exitUsage {
				t.Fatalf("got %v, want a fault with exit code %d", err, exitUsage)
			}
			for _, want := range c.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in %q", want, err)
				}
			}
			if strings.Contains(err.Error(), "pw") {
				t.Errorf("the password is said: %v", err)
			}
		})
	}
}

func TestMaskURL(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"postgres://h/x":                                "postgres://h/x",
		"postgres://u@h/x":                              "postgres://u@h/x",
		"postgres://u:pw@h:5432/x?sslmode=disable":      "postgres://u:xxxxx@h:5432/x?sslmode=disable",
		"postgres://u:pw@h1:1,h2:2/x":                   "postgres://u:xxxxx@h1:1,h2:2/x",
		"cockroach://u:p%40w@h/x":                       "cockroach://u:xxxxx@h/x",
		"postgres://u:@h/x":                             "postgres://u:xxxxx@h/x",
		"postgres://h/x?password=pw":                    "postgres://h/x?password=xxxxx",
		"postgres://h/x?a=b&pass%77ord=pw&c=d":          "postgres://h/x?a=b&pass%77ord=xxxxx&c=d",
		"postgres://u:pw@h/x?sslpassword=pw&password=p": "postgres://u:xxxxx@h/x?sslpassword=xxxxx&password=xxxxx",
		"postgres://h:5432/x?application_name=a@b":      "postgres://h:5432/x?application_name=a@b",
		// Typos, in which a part of the password is somewhere else.
		"postgres://u:p@w@h/x":   "postgres://u:xxxxx@h/x",
		"postgres://u:p/w@h/x":   "postgres://u:xxxxx@h/x",
		"postgres://u:p?w@h/x":   "postgres://u:xxxxx@h/x",
		"postgres://u:p:w#@h/x":  "postgres://u:xxxxx@h/x",
		"pebble:some/where":      "pebble:some/where",
		"postgres://":            "postgres://",
		"postgres://?password=p": "postgres://?password=xxxxx",
	} {
		if got := maskURL(raw); got != want {
			t.Errorf("%s is %s, want %s", raw, got, want)
		}
	}
}

// TestPasswordsAreMasked: not even a driver's complaint about the URL says one.
func TestPasswordsAreMasked(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.configure()
	for _, url := range []string{
		"postgres://u:" + escaped + "@127.0.0.1:notaport/x",
		"postgres://u:" + password + "@127.0.0.1:1/x", // not escaped: no URL any more
		"postgres://u:s3cret@halves@127.0.0.1:1/x",
		"postgres://127.0.0.1:1/x?user=u&password=" + escaped + "&pool_max_conns=many",
		"postgres://u:" + escaped + "@127.0.0.1:1/x?sslmode=maybe",
		"cockroach://u:" + escaped + "@127.0.0.1:1/x?default_query_exec_mode=exec",
	} {
		for _, command := range [][]string{
			serveArgs("--store-timeout", "100ms"), {"dev", "--listen", "127.0.0.1:0", "--store-timeout", "100ms"}, {"doctor"},
			{"migrate", "up"}, {"migrate", "status"}, {"migrate", "print"}, {"config", "print", "--effective"}, {"conformance"},
		} {
			got := f.warifu(append(command, "--store", url)...)
			got.wantNoPassword(t)
			if got.code == 0 && command[0] != "config" {
				t.Errorf("%v %s: %+v", command, url, got)
			}
		}
	}
	f.write("print.yaml", "store: postgres://u:"+escaped+"@h/x\n")
	printed := f.warifu("config", "print", "--effective", "--config", "print.yaml")
	printed.want(t, 0, "store: postgres://u:xxxxx@h/x", "")
	printed.wantNoPassword(t)
}
