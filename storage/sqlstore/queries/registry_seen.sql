-- When keys were last used, as far as it was noted.
SELECT s.key_id, s.seen_at
FROM registry_seen AS s
WHERE s.key_id = ANY ($1::TEXT[])
