-- Part of the change that it tells of; the primary key keeps a change from being
-- made twice even if it was not looked for.
INSERT INTO registry_audit (change_id, n, tenant_id, at, revision, doc)
SELECT $1::UUID, i.n, i.tenant_id, $2::TIMESTAMPTZ, $3::INT8, i.doc
FROM unnest($4::INT2[], $5::INT8[], $6::BYTEA[]) AS i (n, tenant_id, doc)
