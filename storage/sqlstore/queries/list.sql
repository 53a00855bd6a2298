-- A page of one shard: one short range of the primary key, and of what is in it
-- the states asked for, as decisions see them. Plain, and a statement for each shard:
-- CockroachDB turns a join of ranges with a limit into a scan of everything
-- (cockroachdb/cockroach issue 165983).
SELECT
  l.consumer, l.event_id,
  l.version, l.state, l.takeover, l.attempt, l.attempt_id, l.fence, l.digests, l.event_time,
  l.claimed_at, l.granted_at, l.lease_until, l.hold_until, l.expires_at, l.ended_at, l.hold,
  l.attempts_max, l.redelivery_window, l.retention, l.hold_max, l.result_bytes_max, l.outcome,
  l.omitted, l.content_type, l.metadata, l.result_sum, l.aside_bytes
FROM (
  SELECT
    c.consumer, c.event_id,
    c.version, c.state, c.takeover, c.attempt, c.attempt_id, c.fence, c.digests, c.event_time,
    c.claimed_at, c.granted_at, c.lease_until, c.hold_until, c.expires_at, c.ended_at, c.hold,
    c.attempts_max, c.redelivery_window, c.retention, c.hold_max, c.result_bytes_max, c.outcome,
    c.omitted, c.content_type, c.metadata, c.result_sum, c.aside_bytes
  FROM claims AS c
  WHERE c.shard = $1::INT2 AND c.tenant_id = $2::INT8
    AND (c.consumer, c.event_id) >= ($3::TEXT, $4::TEXT) AND (c.consumer, c.event_id) <= ($5::TEXT, $6::TEXT)
  ORDER BY c.consumer, c.event_id
  LIMIT $7::INT8
) AS l
WHERE CASE WHEN l.state = 1 AND l.hold AND l.lease_until <= $8::TIMESTAMPTZ THEN 3 ELSE l.state END = ANY ($9::INT2[])
ORDER BY l.consumer, l.event_id
