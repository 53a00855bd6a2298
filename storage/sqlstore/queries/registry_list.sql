-- A page of one tenant, along the index from the newest on.
SELECT r.kind, r.name, r.tenant_id, r.version, r.revision, r.change_id, r.created_at, r.updated_at, r.deleted, r.state, r.label, r.doc
FROM registry_rows AS r
WHERE r.kind = $1::INT2 AND r.tenant_id = $2::INT8 AND (r.created_at, r.name) < ($3::TIMESTAMPTZ, $4::TEXT) AND r.state = ANY ($5::INT2[])
ORDER BY r.created_at DESC, r.name DESC
LIMIT $6::INT8
