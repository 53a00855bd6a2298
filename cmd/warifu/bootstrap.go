package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

// bootstrapActor is who the audit log says made the key: nobody has one yet.
const bootstrapActor = "bootstrap"

const (
	// bootstrapLease keeps two bootstraps at once from making two keys.
	bootstrapLease = "keys.bootstrap"
	bootstrapTime  = time.Minute
	// bootstrapTriesMax bounds how often a change whose outcome is unknown is
	// sent; its ID makes it one.
	bootstrapTriesMax = 3
)

// bootstrapKey is what `warifu keys bootstrap` prints.
type bootstrapKey struct {
	Key    string   `json:"key"`
	ID     string   `json:"id"`
	Scopes []string `json:"scopes"`
	Store  string   `json:"store"`
}

func newKeysBootstrap(sys *system) *cobra.Command {
	b := &bootstrapping{sys: sys}
	cmd := &cobra.Command{
		Use: "bootstrap", Short: "Make the first key of the platform, in the store itself", Args: cobra.NoArgs,
		Long: `Makes a key of the platform in the store itself, and prints it, once. All other
keys are made with it: 'warifu context add', 'warifu tenants create', 'warifu keys
create'. It is refused while there is another such key that works, unless --force
says so, for when that one was lost.

The embedded store belongs to one process: stop the server first. With a database
nothing has to be stopped; servers know the key within 5 s.`,
	}
	storeFlags(cmd)
	for _, s := range settings {
		if s.key == "data" {
			s.bind(cmd, serveDefault)
		}
	}
	b.out.bind(cmd)
	cmd.Flags().StringVar(&b.reason, "reason", "the first key of the platform", "why, for the audit log")
	cmd.Flags().StringSliceVar(&b.more, "scope", nil, "beside admin:platform and admin:tenant: read, resolve")
	cmd.Flags().StringVar(&b.env, "env", "live", "a word in the key that tells people where it belongs: 1-16 of [a-z0-9]")
	cmd.Flags().BoolVar(&b.force, "force", false, "make a key although there is one")
	_ = cmd.RegisterFlagCompletionFunc("scope", cobra.FixedCompletions([]string{"read", "resolve"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(*cobra.Command, []string) error {
		if err := b.validate(); err != nil {
			return err
		}
		c, err := loadConfig(sys, cmd.Flags(), serveDefault)
		if err != nil {
			return err
		}
		return b.run(cmd.Context(), c)
	}
	return cmd
}

// bootstrapping makes the first key.
type bootstrapping struct {
	sys    *system
	out    output
	reason string
	more   []string
	env    string
	force  bool
}

func (b *bootstrapping) validate() error {
	for _, name := range b.more {
		if !slices.Contains([]string{"read", "resolve"}, name) {
			return usageError("--scope %q: it is read or resolve; admin:platform and admin:tenant are always there", name)
		}
	}
	if !tenant.ValidEnv(b.env) {
		return usageError("--env %q: it is 1-16 characters of [a-z0-9]", b.env)
	}
	if n := len(b.reason); n == 0 || n > reasonBytesMax {
		return usageError("--reason: it has 1-%d bytes", reasonBytesMax)
	}
	return b.out.validate()
}

func (b *bootstrapping) run(ctx context.Context, c *config) (err error) {
	rows, closeStore, err := openRegistry(ctx, b.sys, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeStore()) }()
	text, row, err := b.make(ctx, rows)
	if err != nil {
		return c.target.failed("make a key in", err)
	}
	if err := b.print(bootstrapKey{Key: text, ID: row.ID, Scopes: row.Scopes, Store: c.target.String()}); err != nil {
		return fmt.Errorf("the key %s was made and could not be printed, so it is lost: run it again with --force, and revoke this one: %w", row.ID, err)
	}
	return nil
}

func (b *bootstrapping) print(made bootstrapKey) error {
	return b.out.write(b.sys.stdout, made, func(w io.Writer) {
		row(w, "# shown once and stored nowhere; it rules over all tenants in "+made.Store)
		row(w, "WARIFU_API_KEY="+made.Key)
		row(w, "")
		row(w, "id", made.ID)
		row(w, "scopes", strings.Join(made.Scopes, ", "))
	})
}

// make makes the key, with nobody else at it.
func (b *bootstrapping) make(ctx context.Context, rows registry.Registry) (text string, made registry.Key, err error) {
	lease, held, err := rows.Lease(ctx, bootstrapLease, uuid.NewString(), bootstrapTime)
	if err != nil {
		return "", made, err
	}
	if !held {
		return "", made, exit(exitConflict, errors.New("another bootstrap is under way, or was broken off less than a minute ago; try again then"))
	}
	defer b.unlease(ctx, rows, lease)
	all, err := rows.Load(ctx, 0)
	if err != nil {
		return "", made, err
	}
	if k := platformKey(all.Keys, claim.FromTime(b.sys.now())); k != nil && !b.force {
		return "", made, exit(exitConflict, fmt.Errorf("the key %s of the platform works already: make others with it, or give --force if it is lost", k.ID))
	}
	text, key := tenant.NewKey(b.env)
	scopes := []string{"admin:platform", "admin:tenant"}
	for _, name := range b.more {
		if !slices.Contains(scopes, name) {
			scopes = append(scopes, name)
		}
	}
	made = registry.Key{ID: key.ID, Secret: registry.Hash(key.SecretSHA256), Scopes: scopes, Note: "made by keys bootstrap"}
	return text, made, b.apply(ctx, rows, made)
}

// unlease lets others make a key. When it fails they wait until the lease is over;
// the key that was made must be told all the same.
func (b *bootstrapping) unlease(ctx context.Context, rows registry.Registry, lease registry.Lease) {
	if err := rows.Unlease(context.WithoutCancel(ctx), bootstrapLease, lease.Fence); err != nil {
		row(b.sys.stderr, fmt.Sprintf("warning: another bootstrap has to wait for up to %v: %v", bootstrapTime, err))
	}
}

// platformKey is a key of the platform that works at now; nil: there is none.
func platformKey(keys []registry.Key, now claim.Time) *registry.Key {
	for i := range keys {
		k := &keys[i]
		if k.Tenant == 0 && !k.Deleted && k.Revoked == 0 && (k.Expires == 0 || k.Expires > now) && slices.Contains(k.Scopes, "admin:platform") {
			return k
		}
	}
	return nil
}

func (b *bootstrapping) apply(ctx context.Context, rows registry.Registry, key registry.Key) error {
	after, err := json.Marshal(struct {
		ID     string   `json:"id"`
		Scopes []string `json:"scopes"`
		Note   string   `json:"note"`
	}{key.ID, key.Scopes, key.Note})
	if err != nil {
		return fmt.Errorf("write the audit entry: %w", err)
	}
	change := registry.Change{
		Keys:  []registry.Write[registry.Key]{registry.Put(key)},
		Audit: []registry.AuditEntry{{Actor: bootstrapActor, Action: "key.create", Target: key.ID, Reason: b.reason, After: after}},
	}
	_, _ = rand.Read(change.ID[:]) // never fails: it ends the process instead
	for try := 1; ; try++ {
		_, err := rows.Apply(ctx, change)
		if err == nil || !errors.Is(err, storage.ErrUnknown) || try == bootstrapTriesMax {
			return err
		}
	}
}
