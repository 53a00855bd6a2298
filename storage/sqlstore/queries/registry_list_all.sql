-- As registry_list.sql, of all tenants and of the platform itself.
SELECT r.kind, r.name, r.tenant_id, r.version, r.revision, r.change_id, r.created_at, r.updated_at, r.deleted, r.state, r.label, r.doc
FROM registry_rows AS r
WHERE r.kind = $1::INT2 AND (r.created_at, r.name) < ($2::TIMESTAMPTZ, $3::TEXT) AND r.state = ANY ($4::INT2[])
ORDER BY r.created_at DESC, r.name DESC
LIMIT $5::INT8
