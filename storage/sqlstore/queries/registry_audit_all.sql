-- As registry_audit.sql, of all tenants and of the platform itself.
SELECT a.change_id, a.n, a.tenant_id, a.at, a.revision, a.doc
FROM registry_audit AS a
WHERE a.at >= $1::TIMESTAMPTZ AND a.at < $2::TIMESTAMPTZ
  AND (a.at, a.revision, a.n) < ($3::TIMESTAMPTZ, $4::INT8, $5::INT2)
ORDER BY a.at DESC, a.revision DESC, a.n DESC
LIMIT $6::INT8
