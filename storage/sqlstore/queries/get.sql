-- Every key asked for has its row, also when nothing is stored: the database's
-- time is part of every answer.
SELECT
  i.n, now(),
  c.version, c.state, c.takeover, c.attempt, c.attempt_id, c.fence, c.digests, c.event_time,
  c.claimed_at, c.granted_at, c.lease_until, c.hold_until, c.expires_at, c.ended_at,
  c.hold, c.attempts_max, c.redelivery_window, c.retention, c.hold_max, c.result_bytes_max,
  c.outcome, c.omitted, c.content_type, c.metadata, c.result_sum, c.result, c.aside_bytes
FROM
  unnest($1::INT2[], $2::INT2[], $3::INT8[], $4::TEXT[], $5::TEXT[]) AS i (n, shard, tenant_id, consumer, event_id)
  LEFT JOIN claims AS c ON c.shard = i.shard AND c.tenant_id = i.tenant_id AND c.consumer = i.consumer AND c.event_id = i.event_id
