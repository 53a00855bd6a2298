-- A new life on a forgotten or expired record. What is in doubt never expires,
-- and neither does a live lease. The fence goes on from the old life's.
UPDATE claims AS c
SET
  version = c.version + 1, state = CASE WHEN i.outcome = 0 THEN 1 ELSE 4 END, takeover = 0, attempt = 1,
  attempt_id = i.attempt_id, fence = greatest((extract(epoch FROM t.at) * 1000000)::INT8, c.fence + 1), digests = i.digests, event_time = i.event_time,
  claimed_at = t.at, granted_at = t.at, lease_until = t.at + i.lease, hold_until = t.at + greatest(i.hold_max, i.lease),
  expires_at = greatest(t.at + i.retention, t.at + i.lease + i.redelivery_window), ended_at = CASE WHEN i.outcome = 0 THEN NULL ELSE t.at END,
  hold = i.hold, attempts_max = i.attempts_max, redelivery_window = i.redelivery_window, retention = i.retention,
  hold_max = i.hold_max, result_bytes_max = i.result_bytes_max,
  outcome = i.outcome, omitted = i.omitted, content_type = i.content_type, metadata = i.metadata,
  result_sum = i.result_sum, result = i.result, aside_bytes = i.aside_bytes
FROM
  (SELECT greatest($1::TIMESTAMPTZ, CASE WHEN now() > $2::TIMESTAMPTZ + INTERVAL '1 hour' THEN $2::TIMESTAMPTZ ELSE now() END) AS at) AS t,
  unnest(
    $3::INT2[], $4::INT2[], $5::INT8[], $6::TEXT[], $7::TEXT[],
    $8::INT8[], $9::INT8[], $10::UUID[], $11::BYTEA[], $12::TIMESTAMPTZ[], $13::TIMESTAMPTZ[], $14::INTERVAL[], $15::BOOL[], $16::INT8[], $17::INTERVAL[], $18::INTERVAL[], $19::INTERVAL[], $20::INT8[], $21::INT2[], $22::INT2[], $23::TEXT[], $24::BYTEA[], $25::BYTEA[], $26::BYTEA[], $27::INT8[]
  ) AS i (
    n, shard, tenant_id, consumer, event_id,
    fence, version, attempt_id, digests, event_time, insert_before, lease, hold, attempts_max, redelivery_window, retention, hold_max, result_bytes_max, outcome, omitted, content_type, metadata, result_sum, result, aside_bytes
  )
WHERE c.shard = i.shard AND c.tenant_id = i.tenant_id AND c.consumer = i.consumer AND c.event_id = i.event_id
  AND c.fence = i.fence AND c.version = i.version
  AND (i.insert_before IS NULL OR t.at < i.insert_before)
  AND (c.state = 5 OR (c.expires_at <= t.at AND (c.state IN (2, 4) OR (c.state = 1 AND c.lease_until <= t.at AND NOT c.hold))))
RETURNING i.n
