package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"

	"github.com/warifu/warifu/storage/claim"
)

// Kind is what a row is. The numbers are on disk.
type Kind int16

// The kinds of rows. Those up to KindKey are loaded by servers.
const (
	KindTenant Kind = iota + 1
	KindConsumer
	KindKey
	KindFinding
	KindJob
)

var kindNames = map[Kind]string{
	KindTenant: "tenant", KindConsumer: "consumer", KindKey: "key", KindFinding: "finding", KindJob: "job",
}

// Loaded reports whether rows of this kind are what Load returns.
func (k Kind) Loaded() bool { return k <= KindKey }

// Ref is the identity of a row: Name is unique within its kind.
type Ref struct {
	Kind Kind
	Name string
}

// String names the row for people.
func (r Ref) String() string { return kindNames[r.Kind] + " " + r.Name }

// TenantRef returns the identity of a tenant. Names are in the order of IDs.
func TenantRef(id claim.TenantID) Ref { return Ref{KindTenant, fmt.Sprintf("%016x", int64(id))} }

// ConsumerRef returns the identity of a consumer.
func ConsumerRef(tenant claim.TenantID, name string) Ref {
	return Ref{KindConsumer, fmt.Sprintf("%016x/%s", int64(tenant), name)}
}

// Stored is a row as drivers keep it: what they search and guard, and the rest
// as a document.
type Stored struct {
	Ref    Ref
	Head   // without Unknown, which is in the document
	Tenant claim.TenantID
	State  int16
	// Label is unique among the rows of a kind; "" is not.
	Label string
	Doc   []byte // JSON; empty in a tombstone
}

// ErrDocument says that a stored document cannot be read.
var ErrDocument = errors.New("a stored document cannot be decoded")

// row is what every typed row can say of itself.
type row interface {
	head() *Head
	stored() Stored // without Head and Doc
	check() error
}

func (t *Tenant) head() *Head   { return &t.Head }
func (c *Consumer) head() *Head { return &c.Head }
func (k *Key) head() *Head      { return &k.Head }
func (f *Finding) head() *Head  { return &f.Head }
func (j *Job) head() *Head      { return &j.Head }

func (t *Tenant) stored() Stored {
	s := Stored{Ref: TenantRef(t.ID), Tenant: t.ID, State: int16(t.State), Label: t.Name}
	if t.State == TenantDeleted {
		s.Label = "" // the name is free
	}
	return s
}

func (c *Consumer) stored() Stored {
	return Stored{Ref: ConsumerRef(c.Tenant, c.Name), Tenant: c.Tenant}
}

func (k *Key) stored() Stored { return Stored{Ref: Ref{KindKey, k.ID}, Tenant: k.Tenant} }

func (f *Finding) stored() Stored {
	return Stored{Ref: Ref{KindFinding, f.ID.String()}, Tenant: f.Tenant, State: int16(f.State)}
}

func (j *Job) stored() Stored {
	return Stored{Ref: Ref{KindJob, j.ID.String()}, Tenant: j.Tenant, State: int16(j.State)}
}

// encode returns the row's document, unknown fields included.
func encode(r row) ([]byte, error) {
	doc, err := json.Marshal(r)
	unknown := r.head().Unknown
	if err != nil || len(unknown) == 0 {
		return doc, err
	}
	all := map[string]json.RawMessage{}
	if err := json.Unmarshal(doc, &all); err != nil {
		return nil, err
	}
	known := fieldsOf(r)
	for name, value := range unknown {
		if !known[name] {
			all[name] = value
		}
	}
	return json.Marshal(all)
}

// decode reads a row out of what is stored.
func decode(s *Stored, r row) error {
	*r.head() = s.Head
	if s.Deleted {
		return nil
	}
	if err := json.Unmarshal(s.Doc, r); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrDocument, s.Ref, err)
	}
	all := map[string]json.RawMessage{}
	if err := json.Unmarshal(s.Doc, &all); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrDocument, s.Ref, err)
	}
	known := fieldsOf(r)
	maps.DeleteFunc(all, func(name string, _ json.RawMessage) bool { return known[name] })
	if len(all) > 0 {
		r.head().Unknown = all
	}
	if got := r.stored(); got.Ref != s.Ref || got.Tenant != s.Tenant {
		return fmt.Errorf("%w: %s holds %s", ErrDocument, s.Ref, got.Ref)
	}
	return nil
}

// fieldsOf returns the names that a row's fields have in JSON.
func fieldsOf(r row) map[string]bool {
	names := map[string]bool{}
	for _, f := range reflect.VisibleFields(reflect.TypeOf(r).Elem()) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			names[name] = true
		}
	}
	return names
}

// Decode adds a stored row to what is loaded.
func (c *Changes) Decode(s *Stored) error {
	switch s.Ref.Kind {
	case KindTenant:
		t := Tenant{ID: s.Tenant}
		err := decode(s, &t)
		c.Tenants = append(c.Tenants, t)
		return err
	case KindConsumer:
		_, name, _ := strings.Cut(s.Ref.Name, "/")
		v := Consumer{Tenant: s.Tenant, Name: name}
		err := decode(s, &v)
		c.Consumers = append(c.Consumers, v)
		return err
	case KindKey:
		k := Key{ID: s.Ref.Name, Tenant: s.Tenant}
		err := decode(s, &k)
		c.Keys = append(c.Keys, k)
		return err
	case KindFinding, KindJob:
	}
	return fmt.Errorf("%w: %s is not loaded", ErrDocument, s.Ref)
}

// DecodeFinding reads a finding out of what is stored.
func DecodeFinding(s *Stored) (f Finding, err error) { err = decode(s, &f); return f, err }

// DecodeJob reads a job out of what is stored.
func DecodeJob(s *Stored) (j Job, err error) { err = decode(s, &j); return j, err }

// EncodeAudit returns the document of an audit entry.
func EncodeAudit(e *AuditEntry) ([]byte, error) { return json.Marshal(e) }

// DecodeAudit reads the document of an audit entry into e.
func DecodeAudit(doc []byte, e *AuditEntry) error {
	if err := json.Unmarshal(doc, e); err != nil {
		return fmt.Errorf("%w: audit entry: %w", ErrDocument, err)
	}
	return nil
}
