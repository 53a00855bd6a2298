-- The first statement of a change that waits: from here to the commit nobody else
-- writes rows, so what is read afterwards stays true. Time is held, too, so that
-- the audit log is in one order by time and by revision.
UPDATE registry_meta AS m
SET revision = m.revision + 1, at = greatest(m.at, t.at)
FROM (SELECT greatest($1::TIMESTAMPTZ, CASE WHEN now() > $2::TIMESTAMPTZ + INTERVAL '1 hour' THEN $2::TIMESTAMPTZ ELSE now() END) AS at) AS t
WHERE m.id = 1
RETURNING m.revision, m.at
