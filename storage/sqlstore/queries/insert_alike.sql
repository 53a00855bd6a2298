-- First claims of one consumer under one policy, without one-shot results: what
-- they share is said once. Whoever inserts is told of the keys that it has inserted,
-- and of all others gets what is stored: a batch of fresh keys reads nothing back.
-- A key may be in neither: its row was committed after this statement began. Then
-- it is looked at again.
-- In the order of the keys, so that two batches never wait for each other. Arrays
-- of times are empty where no event has any. What is looked up stands in a table of
-- its own with the whole key, or PostgreSQL has plans for tenant and consumer alone.
WITH
  t AS MATERIALIZED (
    SELECT
      $3::INT8 AS tenant_id, $4::TEXT AS consumer, h.at, (extract(epoch FROM h.at) * 1000000)::INT8 AS fence,
      h.at + $5::INTERVAL AS lease_until, h.at + greatest($8::INTERVAL, $5::INTERVAL) AS hold_until,
      greatest(h.at + $7::INTERVAL, h.at + $5::INTERVAL + $6::INTERVAL) AS expires_at
    FROM
      (SELECT greatest($1::TIMESTAMPTZ, CASE WHEN now() > $2::TIMESTAMPTZ + INTERVAL '1 hour' THEN $2::TIMESTAMPTZ ELSE now() END) AS at) AS h
  ),
  inserted AS (
    INSERT INTO claims (
      shard, tenant_id, consumer, event_id, version, state, takeover, attempt, attempt_id, fence, digests, event_time,
      claimed_at, granted_at, lease_until, hold_until, expires_at, expiry_shard, ended_at,
      hold, attempts_max, redelivery_window, retention, hold_max, result_bytes_max,
      outcome, omitted, content_type, metadata, result_sum, result, aside_bytes
    )
    SELECT
      i.shard, t.tenant_id, t.consumer, i.event_id, 1, 1, 0, 1, i.attempt_id, t.fence, i.digests, i.event_time,
      t.at, t.at, t.lease_until, t.hold_until, t.expires_at, i.shard, NULL,
      $9::INT2 = 1, $10::INT8, $6::INTERVAL, $7::INTERVAL, $8::INTERVAL, $11::INT8,
      0, 0, '', NULL, NULL, NULL, 0
    FROM
      t
      CROSS JOIN unnest($12::INT2[], $13::INT2[], $14::TEXT[], $15::UUID[], $16::BYTEA[], $17::TIMESTAMPTZ[], $18::TIMESTAMPTZ[])
        AS i (n, shard, event_id, attempt_id, digests, event_time, insert_before)
    WHERE i.insert_before IS NULL OR t.at < i.insert_before
    ORDER BY i.n
    ON CONFLICT (shard, tenant_id, consumer, event_id) DO NOTHING
    RETURNING event_id, fence
  ),
  i AS MATERIALIZED (
    SELECT a.n, a.shard, t.tenant_id, t.consumer, a.event_id
    FROM t CROSS JOIN unnest($12::INT2[], $13::INT2[], $14::TEXT[]) AS a (n, shard, event_id)
    WHERE a.event_id NOT IN (SELECT d.event_id FROM inserted AS d)
  )
SELECT
  f.event_id, f.fence, NULL::INT2, now(),
  NULL::INT8, NULL::INT2, NULL::INT2, NULL::INT8, NULL::UUID, NULL::INT8, NULL::BYTEA, NULL::TIMESTAMPTZ,
  NULL::TIMESTAMPTZ, NULL::TIMESTAMPTZ, NULL::TIMESTAMPTZ, NULL::TIMESTAMPTZ, NULL::TIMESTAMPTZ, NULL::TIMESTAMPTZ,
  NULL::BOOL, NULL::INT8, NULL::INTERVAL, NULL::INTERVAL, NULL::INTERVAL, NULL::INT8,
  NULL::INT2, NULL::INT2, NULL::TEXT, NULL::BYTEA, NULL::BYTEA, NULL::BYTEA, NULL::INT8
FROM inserted AS f
UNION ALL
SELECT
  NULL::TEXT, NULL::INT8, i.n, now(),
  c.version, c.state, c.takeover, c.attempt, c.attempt_id, c.fence, c.digests, c.event_time,
  c.claimed_at, c.granted_at, c.lease_until, c.hold_until, c.expires_at, c.ended_at,
  c.hold, c.attempts_max, c.redelivery_window, c.retention, c.hold_max, c.result_bytes_max,
  c.outcome, c.omitted, c.content_type, c.metadata, c.result_sum, c.result, c.aside_bytes
FROM
  i
  LEFT JOIN claims AS c ON c.shard = i.shard AND c.tenant_id = i.tenant_id AND c.consumer = i.consumer AND c.event_id = i.event_id
