package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"go.yaml.in/yaml/v3"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

// declaration is a file that says which tenants and consumers there are.
type declaration struct {
	Tenants []declaredTenant `yaml:"tenants"`
	// Consumers are those of the tenant that the key or --tenant names.
	Consumers []declaredConsumer `yaml:"consumers"`
}

// declaredTenant has the names of the server's configuration where that has any.
type declaredTenant struct {
	Name   string         `yaml:"name"`
	Strict bool           `yaml:"strict"`
	Note   string         `yaml:"note"`
	Quotas declaredQuotas `yaml:"quotas"`
	// Consumers are all that the tenant is to have; nil: the file does not say.
	Consumers []declaredConsumer `yaml:"consumers"`
}

type declaredQuotas struct {
	RequestsPerSecond int64 `yaml:"requests_per_second"`
	ItemsPerSecond    int64 `yaml:"items_per_second"`
	LiveLeasesMax     int64 `yaml:"live_leases_max"`
	RetainedKeysMax   int64 `yaml:"retained_keys_max"`
	StoredBytesMax    int64 `yaml:"stored_bytes_max"`
	InDoubtMax        int64 `yaml:"in_doubt_max"`
}

func (q declaredQuotas) message() *warifuv1.Quotas {
	return &warifuv1.Quotas{
		RequestsPerSecond: q.RequestsPerSecond, ItemsPerSecond: q.ItemsPerSecond, LiveLeasesMax: q.LiveLeasesMax,
		RetainedKeysMax: q.RetainedKeysMax, StoredBytesMax: q.StoredBytesMax, InDoubtMax: q.InDoubtMax,
	}
}

type declaredConsumer struct {
	Name   string         `yaml:"name"`
	Note   string         `yaml:"note"`
	Policy declaredPolicy `yaml:",inline"`
}

// declarationBytesMax bounds a file, which somebody writes by hand.
const declarationBytesMax = 4 << 20

// readDeclaration reads and checks a file; all faults are reported together.
func readDeclaration(sys *system, path string) (*declaration, error) {
	var text []byte
	var err error
	if path == "-" {
		text, err = io.ReadAll(io.LimitReader(sys.stdin, declarationBytesMax+1))
	} else {
		text, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, exit(exitUsage, fmt.Errorf("--file: %w", err))
	}
	if len(text) > declarationBytesMax {
		return nil, usageError("--file: it has more than %d bytes", declarationBytesMax)
	}
	wanted := &declaration{}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	if err := dec.Decode(wanted); err != nil {
		return nil, exit(exitUsage, fmt.Errorf("--file: %w", err))
	}
	if err := dec.Decode(&declaration{}); !errors.Is(err, io.EOF) {
		return nil, usageError("--file: it holds more than one document")
	}
	if err := wanted.check(); err != nil {
		return nil, exit(exitUsage, fmt.Errorf("--file: %w", err))
	}
	return wanted, nil
}

func (d *declaration) check() error {
	var faults []error
	if len(d.Tenants) == 0 && d.Consumers == nil {
		faults = append(faults, errors.New("it declares neither tenants nor consumers"))
	}
	seen := map[string]bool{}
	for i := range d.Tenants {
		t := &d.Tenants[i]
		if t.Name == "" || seen[t.Name] {
			faults = append(faults, fmt.Errorf("tenants[%d]: name %q is missing or there twice", i, t.Name))
		}
		seen[t.Name] = true
		faults = append(faults, checkConsumers(fmt.Sprintf("tenant %q: ", t.Name), t.Consumers)...)
	}
	return errors.Join(append(faults, checkConsumers("", d.Consumers)...)...)
}

func checkConsumers(of string, all []declaredConsumer) (faults []error) {
	seen := map[string]bool{}
	for i := range all {
		c := &all[i]
		if c.Name == "" || seen[c.Name] {
			faults = append(faults, fmt.Errorf("%sconsumers[%d]: name %q is missing or there twice", of, i, c.Name))
		}
		seen[c.Name] = true
		if _, err := c.Policy.message(); err != nil {
			faults = append(faults, fmt.Errorf("%sconsumer %q: %w", of, c.Name, err))
		}
	}
	return faults
}
