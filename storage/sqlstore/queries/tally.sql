-- One short range of the primary key of one shard, counted by consumer as decisions
-- see it: what is expired is in the keys and the bytes alone. The last event ID of the
-- last consumer is where the next step goes on. Bytes are those of codec.RecordBytes.
SELECT
  l.consumer, max(l.event_id), count(*),
  count(CASE WHEN l.state = 1 AND l.lease_until > $7::TIMESTAMPTZ THEN 1 END),
  count(CASE WHEN l.state = 1 AND NOT l.hold AND l.lease_until <= $7::TIMESTAMPTZ AND l.expires_at > $7::TIMESTAMPTZ THEN 1 END),
  count(CASE WHEN l.state = 3 OR (l.state = 1 AND l.hold AND l.lease_until <= $7::TIMESTAMPTZ) THEN 1 END),
  count(CASE WHEN l.state = 4 AND l.expires_at > $7::TIMESTAMPTZ THEN 1 END),
  sum(l.bytes)::INT8
FROM (
  SELECT
    c.consumer, c.event_id, c.state, c.hold, c.lease_until, c.expires_at,
    $6::INT8 + octet_length(c.consumer) + octet_length(c.event_id) + octet_length(c.digests) + c.aside_bytes
      + coalesce(octet_length(c.content_type), 0) + coalesce(octet_length(c.metadata), 0)
      + coalesce(octet_length(c.result), 0) AS bytes
  FROM claims AS c
  WHERE c.shard = $1::INT2 AND c.tenant_id = $2::INT8
    AND (c.consumer, c.event_id) > ($3::TEXT, $4::TEXT)
  ORDER BY c.consumer, c.event_id
  LIMIT $5::INT8
) AS l
GROUP BY l.consumer
ORDER BY l.consumer
