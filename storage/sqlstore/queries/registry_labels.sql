-- Who has these names now, and the last tenant: tombstones stay, so it is the
-- largest number that was ever used.
SELECT r.label, r.name, true
FROM registry_rows AS r
WHERE r.kind = 1 AND r.label = ANY ($1::TEXT[])
UNION ALL
SELECT '', coalesce(max(r.name), ''), false
FROM registry_rows AS r
WHERE r.kind = 1
