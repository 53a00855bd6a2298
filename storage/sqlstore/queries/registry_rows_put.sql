-- The rules were asked with these rows in sight and no other writer; the version
-- is compared once more, and whoever sends this counts what was changed.
INSERT INTO registry_rows AS r (
  kind, name, tenant_id, version, revision, change_id, created_at, updated_at, deleted, state, label, doc
)
SELECT
  i.kind, i.name, i.tenant_id, i.version, $1::INT8, $2::UUID, i.created_at, $3::TIMESTAMPTZ, i.deleted, i.state, i.label, i.doc
FROM
  unnest($4::INT2[], $5::TEXT[], $6::INT8[], $7::INT8[], $8::TIMESTAMPTZ[], $9::BOOL[], $10::INT2[], $11::TEXT[], $12::BYTEA[])
    AS i (kind, name, tenant_id, version, created_at, deleted, state, label, doc)
ON CONFLICT (kind, name) DO UPDATE
SET
  tenant_id = excluded.tenant_id, version = excluded.version, revision = excluded.revision, change_id = excluded.change_id,
  created_at = excluded.created_at, updated_at = excluded.updated_at, deleted = excluded.deleted, state = excluded.state,
  label = excluded.label, doc = excluded.doc
WHERE r.version = excluded.version - 1
