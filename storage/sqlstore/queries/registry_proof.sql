-- Was this change made before?
SELECT a.revision, a.at
FROM registry_audit AS a
WHERE a.change_id = $1::UUID AND a.n = 0
