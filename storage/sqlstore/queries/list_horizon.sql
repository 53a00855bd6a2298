-- The last key of one shard that a page has looked at, if that was not all.
SELECT c.consumer, c.event_id
FROM claims AS c
WHERE c.shard = $1::INT2 AND c.tenant_id = $2::INT8
  AND (c.consumer, c.event_id) >= ($3::TEXT, $4::TEXT) AND (c.consumer, c.event_id) <= ($5::TEXT, $6::TEXT)
ORDER BY c.consumer, c.event_id
LIMIT 1 OFFSET $7::INT8
