package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/fault"
	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

const (
	// overlapDefault and overlapMax are how long a rotated key works on.
	overlapDefault = 24 * time.Hour
	overlapMax     = 90 * 24 * time.Hour
)

var (
	limitScopes = "one or more of claim, read, resolve, admin:tenant; a key of the platform claims nothing and may have admin:platform"
	limitPrefix = fmt.Sprintf("at most %d characters of [A-Za-z0-9._/-], and none for keys that administer", claim.ConsumerCharsMax)
	limitExpiry = "a time in the future"
	limitEnv    = "1-16 characters of [a-z0-9]"
)

var errNoKey = fault.New(warifuv1.Reason_REASON_NOT_FOUND, "no such key")

var errKeyShown = fault.New(warifuv1.Reason_REASON_PRECONDITION,
	"this change has made a key before, and its text was in that reply alone: revoke it and make another")

// CreateKey makes an API key.
func (a *team) CreateKey(ctx context.Context, m *warifuv1.CreateKeyRequest) (*warifuv1.CreateKeyResponse, error) {
	if err := why(m.GetChange(), false); err != nil {
		return nil, err
	}
	w, err := a.maybeOf(ctx, m.GetTenant())
	if err != nil {
		return nil, err
	}
	if err := w.takesNew(len(w.keysOf(w.id(), "")), keysMax, "keys"); err != nil {
		return nil, err
	}
	row := registry.Key{Tenant: w.id(), Scopes: m.GetScopes(), ConsumerPrefix: m.GetConsumerPrefix(), Note: m.GetNote()}
	if m.GetExpiresAt() != nil {
		if m.GetExpiresAt().CheckValid() != nil || !m.GetExpiresAt().AsTime().After(a.cfg.Clock()) {
			return nil, fault.Invalid("expires_at", limitExpiry)
		}
		row.Expires = claim.FromTime(m.GetExpiresAt().AsTime())
	}
	if err := checkRights(&row); err != nil {
		return nil, err
	}
	text, err := mint(m.GetEnvironment(), &row)
	if err != nil {
		return nil, err
	}
	if m.GetChange().GetDryRun() {
		row.ID = ""
		return &warifuv1.CreateKeyResponse{Key: keyMessage(&row, 0)}, nil
	}
	err = a.apply(ctx, registry.Change{
		ID: w.changeID(m), Keys: []registry.Write[registry.Key]{registry.Put(row)},
		Audit: []registry.AuditEntry{w.entry("key.create", row.ID, m.GetChange(), nil, keyMessage(&row, 0))},
	})
	if err != nil {
		return nil, writeFault(err)
	}
	made, err := a.key(ctx, w.id(), row.ID)
	if errors.Is(err, errNoKey) {
		return nil, errKeyShown // an earlier send of this change has made another
	}
	return shown(&warifuv1.CreateKeyResponse{Key: made, Secret: text}, err)
}

// checkRights refuses scopes that a key of its kind cannot have.
func checkRights(k *registry.Key) error {
	allowed := tenant.ScopeClaim | tenant.ScopeRead | tenant.ScopeResolve | tenant.ScopeAdminTenant
	if k.Tenant == 0 {
		allowed = tenant.ScopeRead | tenant.ScopeResolve | tenant.ScopeAdminTenant | tenant.ScopeAdminPlatform
	}
	var all tenant.Scope
	for i, name := range k.Scopes {
		s, ok := tenant.ParseScope(name)
		if !ok || !allowed.Has(s) {
			return fault.Invalid(fmt.Sprintf("scopes[%d]", i), limitScopes)
		}
		all |= s
	}
	if all == 0 {
		return fault.Invalid("scopes", limitScopes)
	}
	slices.Sort(k.Scopes)
	k.Scopes = slices.Compact(k.Scopes)
	administers := all&(tenant.ScopeAdminTenant|tenant.ScopeAdminPlatform) != 0
	if p := k.ConsumerPrefix; p != "" && (administers || !tenant.ValidConsumer(p)) {
		return fault.Invalid("consumer_prefix", limitPrefix)
	}
	return nil
}

// mint gives a row an ID and the sum of a new secret, and returns the text.
func mint(env string, row *registry.Key) (text string, err error) {
	if env == "" {
		env = "live"
	}
	if !tenant.ValidEnv(env) {
		return "", fault.Invalid("environment", limitEnv)
	}
	text, made := tenant.NewKey(env)
	row.ID, row.Secret = made.ID, registry.Hash(made.SecretSHA256)
	return text, nil
}

// RotateKey makes a key with the same rights, and lets the old one expire.
func (a *team) RotateKey(ctx context.Context, m *warifuv1.RotateKeyRequest) (*warifuv1.RotateKeyResponse, error) {
	if err := why(m.GetChange(), false); err != nil {
		return nil, err
	}
	w, old, err := a.ownKey(ctx, m.GetTenant(), m.GetId())
	if err != nil {
		return nil, err
	}
	overlap := overlapDefault
	if m.GetOverlap() != nil {
		overlap = m.GetOverlap().AsDuration()
	}
	if m.GetOverlap().CheckValid() != nil && m.GetOverlap() != nil || overlap < 0 || overlap > overlapMax {
		return nil, fault.Invalid("overlap", fmt.Sprintf("0s-%v", overlapMax))
	}
	row := registry.Key{Tenant: old.Tenant, Scopes: old.Scopes, ConsumerPrefix: old.ConsumerPrefix, Expires: old.Expires, Note: old.Note}
	text, err := mint(m.GetEnvironment(), &row)
	if err != nil {
		return nil, err
	}
	if old.Revoked != 0 || old.Expires != 0 && old.Expires <= claim.FromTime(a.cfg.Clock()) {
		return nil, fault.New(warifuv1.Reason_REASON_PRECONDITION, "the key is revoked or has expired: make another one")
	}
	if err := w.takesNew(len(w.keysOf(w.id(), "")), keysMax, "keys"); err != nil {
		return nil, err
	}
	ends := *old
	if until := claim.FromTime(a.cfg.Clock().Add(overlap)); ends.Expires == 0 || until < ends.Expires {
		ends.Expires = until
	}
	if m.GetChange().GetDryRun() {
		row.ID = ""
		return &warifuv1.RotateKeyResponse{Key: keyMessage(&row, 0), Old: keyMessage(&ends, 0)}, nil
	}
	if v := m.GetChange().GetExpectedVersion(); v != 0 {
		ends.Version = v
	}
	err = a.apply(ctx, registry.Change{
		ID: w.changeID(m), Keys: []registry.Write[registry.Key]{registry.Put(row), registry.Put(ends)},
		Audit: []registry.AuditEntry{w.entry("key.rotate", old.ID, m.GetChange(), keyMessage(old, 0), keyMessage(&row, 0))},
	})
	if err != nil {
		return nil, writeFault(err)
	}
	made, err := a.key(ctx, w.id(), row.ID)
	if errors.Is(err, errNoKey) {
		return nil, errKeyShown
	}
	return shown(&warifuv1.RotateKeyResponse{Key: made, Secret: text, Old: keyMessage(&ends, 0)}, err)
}

// RevokeKey ends a key.
func (a *team) RevokeKey(ctx context.Context, m *warifuv1.RevokeKeyRequest) (*warifuv1.RevokeKeyResponse, error) {
	if err := why(m.GetChange(), false); err != nil {
		return nil, err
	}
	w, old, err := a.ownKey(ctx, m.GetTenant(), m.GetId())
	if err != nil {
		return nil, err
	}
	row := *old
	if row.Revoked == 0 {
		row.Revoked = claim.FromTime(a.cfg.Clock())
	}
	if m.GetChange().GetDryRun() || old.Revoked != 0 {
		return &warifuv1.RevokeKeyResponse{Key: keyMessage(&row, 0)}, nil
	}
	if v := m.GetChange().GetExpectedVersion(); v != 0 {
		row.Version = v
	}
	err = a.apply(ctx, registry.Change{
		ID: w.changeID(m), Keys: []registry.Write[registry.Key]{registry.Put(row)},
		Audit: []registry.AuditEntry{w.entry("key.revoke", row.ID, m.GetChange(), keyMessage(old, 0), keyMessage(&row, 0))},
	})
	if err != nil {
		return nil, writeFault(err)
	}
	k, err := a.key(ctx, w.id(), row.ID)
	return shown(&warifuv1.RevokeKeyResponse{Key: k}, err)
}

// ownKey returns a key of whom the caller acts for. A credential of the
// platform that names no tenant acts for the platform's own keys.
func (a *Admin) ownKey(ctx context.Context, tenantName, id string) (*acting, *registry.Key, error) {
	w, err := a.maybeOf(ctx, tenantName)
	if err != nil {
		return nil, nil, err
	}
	k := w.keys[id]
	if k == nil || k.Tenant != w.id() {
		return nil, nil, errNoKey
	}
	return w, k, nil
}

// key returns a key as it is now.
func (a *Admin) key(ctx context.Context, of claim.TenantID, id string) (*warifuv1.Key, error) {
	k, err := a.look(ctx)
	if err != nil {
		return nil, readFault(err)
	}
	if row := k.keys[id]; row != nil && row.Tenant == of {
		return keyMessage(row, 0), nil
	}
	return nil, errNoKey
}

// ListKeys pages through keys.
func (a *team) ListKeys(ctx context.Context, m *warifuv1.ListKeysRequest) (*warifuv1.ListKeysResponse, error) {
	w, err := a.maybeOf(ctx, m.GetTenant())
	if err != nil {
		return nil, err
	}
	p, err := a.page(w, "keys", m.GetPageSize(), m.GetPageToken())
	if err != nil {
		return nil, err
	}
	rows, cursor := cut(w.keysOf(w.id(), string(p.cursor)), p.limit, func(k *registry.Key) string { return k.ID })
	var ids []string
	for _, k := range rows {
		ids = append(ids, k.ID)
	}
	used, err := a.cfg.Registry.Used(ctx, ids)
	if err != nil {
		return nil, readFault(err)
	}
	res := &warifuv1.ListKeysResponse{NextPageToken: a.next(&p, cursor)}
	for _, k := range rows {
		res.Keys = append(res.Keys, keyMessage(k, used[k.ID]))
	}
	return res, nil
}
