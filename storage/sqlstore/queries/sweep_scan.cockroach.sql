-- Candidates of one shard in the order of their expiry, from behind a cursor:
-- what was deleted before is not stepped over again. Beside them the time, and
-- the earliest expiry whose grace has not passed: it is left. Under its grace a
-- lapsed lease needs no look at its time: expiries are later than leases.
-- Read ten seconds ago, where it conflicts with nobody: deleting asks again.
SELECT
  now(),
  (
    SELECT min(c.expires_at)
    FROM claims AS c
    WHERE c.shard = $3::INT2 AND c.expires_at > t.at - $4::INTERVAL AND c.expires_at <= t.at
      AND (c.state IN (2, 4, 5) OR (c.state = 1 AND NOT c.hold))
  ) AS oldest,
  s.expires_at, s.tenant_id, s.consumer, s.event_id
FROM
  (SELECT greatest($1::TIMESTAMPTZ, CASE WHEN now() > $2::TIMESTAMPTZ + INTERVAL '1 hour' THEN $2::TIMESTAMPTZ ELSE now() END) AS at) AS t
  LEFT JOIN LATERAL (
    SELECT c.expires_at, c.tenant_id, c.consumer, c.event_id
    FROM claims AS c
    WHERE c.shard = $3::INT2 AND c.expires_at <= t.at - $4::INTERVAL AND c.expires_at >= $5::TIMESTAMPTZ
      AND (c.expires_at, c.tenant_id, c.consumer, c.event_id) > ($5::TIMESTAMPTZ, $6::INT8, $7::TEXT, $8::TEXT)
      AND (c.state IN (2, 4, 5) OR (c.state = 1 AND NOT c.hold))
    ORDER BY c.expires_at, c.tenant_id, c.consumer, c.event_id
    LIMIT $9::INT8
  ) AS s ON true
AS OF SYSTEM TIME '-10s'
ORDER BY s.expires_at, s.tenant_id, s.consumer, s.event_id
