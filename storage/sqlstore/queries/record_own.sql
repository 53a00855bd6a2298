-- The outcome of a one-shot claim on the attempt's own grant.
UPDATE claims AS c
SET
  version = c.version + 1, state = CASE WHEN i.outcome = 0 THEN 1 ELSE 4 END, ended_at = CASE WHEN i.outcome = 0 THEN NULL ELSE t.at END,
  expires_at = greatest(c.expires_at, greatest(t.at, c.lease_until) + c.redelivery_window),
  outcome = i.outcome, omitted = i.omitted, content_type = i.content_type, metadata = i.metadata,
  result_sum = i.result_sum, result = i.result, aside_bytes = i.aside_bytes
FROM
  (SELECT greatest($1::TIMESTAMPTZ, CASE WHEN now() > $2::TIMESTAMPTZ + INTERVAL '1 hour' THEN $2::TIMESTAMPTZ ELSE now() END) AS at) AS t,
  unnest(
    $3::INT2[], $4::INT2[], $5::INT8[], $6::TEXT[], $7::TEXT[],
    $8::INT8[], $9::INT8[], $10::UUID[], $11::INT2[], $12::INT2[], $13::TEXT[], $14::BYTEA[], $15::BYTEA[], $16::BYTEA[], $17::INT8[]
  ) AS i (
    n, shard, tenant_id, consumer, event_id,
    fence, version, attempt_id, outcome, omitted, content_type, metadata, result_sum, result, aside_bytes
  )
WHERE c.shard = i.shard AND c.tenant_id = i.tenant_id AND c.consumer = i.consumer AND c.event_id = i.event_id
  AND c.fence = i.fence AND c.version = i.version AND c.attempt_id = i.attempt_id AND c.state = 1
RETURNING i.n
