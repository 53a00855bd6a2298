-- A first claim takes its key by the primary key alone: of any number of
-- callers one inserts, and the others change nothing and read what is there.
-- In the order of the keys, so that two batches never wait for each other.
INSERT INTO claims (
  shard, tenant_id, consumer, event_id, version, state, takeover, attempt, attempt_id, fence, digests, event_time,
  claimed_at, granted_at, lease_until, hold_until, expires_at, expiry_shard, ended_at,
  hold, attempts_max, redelivery_window, retention, hold_max, result_bytes_max,
  outcome, omitted, content_type, metadata, result_sum, result, aside_bytes
)
SELECT
  i.shard, i.tenant_id, i.consumer, i.event_id, 1, CASE WHEN i.outcome = 0 THEN 1 ELSE 4 END, 0, 1, i.attempt_id,
  (extract(epoch FROM t.at) * 1000000)::INT8, i.digests, i.event_time,
  t.at, t.at, t.at + i.lease, t.at + greatest(i.hold_max, i.lease),
  greatest(t.at + i.retention, t.at + i.lease + i.redelivery_window), i.shard, CASE WHEN i.outcome = 0 THEN NULL ELSE t.at END,
  i.hold, i.attempts_max, i.redelivery_window, i.retention, i.hold_max, i.result_bytes_max,
  i.outcome, i.omitted, i.content_type, i.metadata, i.result_sum, i.result, i.aside_bytes
FROM
  (SELECT greatest($1::TIMESTAMPTZ, CASE WHEN now() > $2::TIMESTAMPTZ + INTERVAL '1 hour' THEN $2::TIMESTAMPTZ ELSE now() END) AS at) AS t,
  unnest(
    $3::INT2[], $4::INT2[], $5::INT8[], $6::TEXT[], $7::TEXT[],
    $8::UUID[], $9::BYTEA[], $10::TIMESTAMPTZ[], $11::TIMESTAMPTZ[], $12::INTERVAL[], $13::BOOL[], $14::INT8[], $15::INTERVAL[], $16::INTERVAL[], $17::INTERVAL[], $18::INT8[],
    $19::INT2[], $20::INT2[], $21::TEXT[], $22::BYTEA[], $23::BYTEA[], $24::BYTEA[], $25::INT8[]
  ) AS i (
    n, shard, tenant_id, consumer, event_id,
    attempt_id, digests, event_time, insert_before, lease, hold, attempts_max, redelivery_window, retention, hold_max, result_bytes_max,
    outcome, omitted, content_type, metadata, result_sum, result, aside_bytes
  )
WHERE i.insert_before IS NULL OR t.at < i.insert_before
ORDER BY i.n
ON CONFLICT (shard, tenant_id, consumer, event_id) DO NOTHING
