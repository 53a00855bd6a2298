-- A page of one tenant, along the index from the newest on.
SELECT a.change_id, a.n, a.tenant_id, a.at, a.revision, a.doc
FROM registry_audit AS a
WHERE a.tenant_id = $1::INT8 AND a.at >= $2::TIMESTAMPTZ AND a.at < $3::TIMESTAMPTZ
  AND (a.at, a.revision, a.n) < ($4::TIMESTAMPTZ, $5::INT8, $6::INT2)
ORDER BY a.at DESC, a.revision DESC, a.n DESC
LIMIT $7::INT8
