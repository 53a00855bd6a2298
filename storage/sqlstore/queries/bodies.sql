-- Bodies above the inline limit are read on their own: an answer of hundreds of
-- keys stays small enough for the server to keep it until it has committed.
-- The fence belongs to the key: a body of another grant is never found.
SELECT i.n, r.body
FROM
  unnest($1::INT2[], $2::INT2[], $3::INT8[], $4::TEXT[], $5::TEXT[], $6::INT8[]) AS i (n, shard, tenant_id, consumer, event_id, fence)
  JOIN claim_results AS r ON r.shard = i.shard AND r.tenant_id = i.tenant_id AND r.consumer = i.consumer
    AND r.event_id = i.event_id AND r.fence = i.fence
