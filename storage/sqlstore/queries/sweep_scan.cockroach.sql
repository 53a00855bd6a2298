-- Candidates of one shard in the order of their expiry, from behind a cursor:
-- what was deleted before is not stepped over again. Under its grace a lapsed lease
-- needs no look at its time: expiries are later than leases.
-- Read ten seconds ago, where it conflicts with nobody: deleting asks again.
SELECT c.expires_at, c.tenant_id, c.consumer, c.event_id
FROM claims AS c AS OF SYSTEM TIME '-10s'
WHERE c.expiry_shard = $1::INT2 AND c.expires_at <= $2::TIMESTAMPTZ AND c.expires_at >= $3::TIMESTAMPTZ
  AND (c.expires_at, c.tenant_id, c.consumer, c.event_id) > ($3::TIMESTAMPTZ, $4::INT8, $5::TEXT, $6::TEXT)
  AND (c.state IN (2, 4, 5) OR (c.state = 1 AND NOT c.hold))
ORDER BY c.expires_at, c.tenant_id, c.consumer, c.event_id
LIMIT $7::INT8
