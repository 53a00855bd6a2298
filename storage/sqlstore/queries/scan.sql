-- Every key, in the order of the primary key, a page at a time.
SELECT c.shard, c.tenant_id, c.consumer, c.event_id
FROM claims AS c
WHERE (c.shard, c.tenant_id, c.consumer, c.event_id) > ($1::INT2, $2::INT8, $3::TEXT, $4::TEXT)
ORDER BY c.shard, c.tenant_id, c.consumer, c.event_id
LIMIT $5::INT8
