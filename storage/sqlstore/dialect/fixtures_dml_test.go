package dialect

// fixtures of rules about statements that read and change rows.
var writeFixtures = []fixture{
	{
		"one-mutation-per-table",
		query("WITH gone AS (DELETE FROM claims WHERE shard = 1 RETURNING shard) INSERT INTO claims AS c (shard) SELECT shard FROM gone;"),
		query("WITH gone AS (DELETE FROM claims WHERE shard = 1 RETURNING shard) INSERT INTO bodies AS c (shard) SELECT shard FROM gone;"),
	},
	{
		"one-mutation-per-table",
		query("WITH a AS (UPDATE claims SET state = 1 WHERE shard = 1), b AS (UPDATE public.claims AS c SET state = 2 WHERE shard = 2) SELECT 1;"),
		query("WITH a AS (UPDATE claims SET state = 1 WHERE shard = 1) SELECT fence FROM claims WHERE shard = 1;"),
	},
	{
		"mutation-at-top",
		query("SELECT n FROM (WITH a AS (DELETE FROM claims WHERE shard = 1 RETURNING 1 AS n) SELECT n FROM a) AS b;"),
		query("WITH a AS (DELETE FROM claims WHERE shard = 1 RETURNING 1 AS n) SELECT n FROM a;"),
	},
	{
		"mutation-at-top",
		query("INSERT INTO bodies (shard) WITH a AS (DELETE FROM claims WHERE shard = 1 RETURNING shard) SELECT shard FROM a;"),
		query("WITH a AS (DELETE FROM claims WHERE shard = 1 RETURNING shard) INSERT INTO bodies (shard) SELECT shard FROM a;"),
	},
	{
		"mutation-at-top", cockroach("SELECT shard FROM [DELETE FROM claims WHERE shard = 1 RETURNING shard];"),
		cockroach("SELECT shard FROM claims;"),
	},
	{
		"conflict-target", query("INSERT INTO tenants (tenant_id) VALUES (1) ON CONFLICT DO NOTHING;"),
		query("INSERT INTO tenants (tenant_id) VALUES (1) ON CONFLICT (tenant_id) DO NOTHING;"),
	},
	{
		"conflict-target", query("INSERT INTO tenants (tenant_id) VALUES (1) ON CONFLICT ON CONSTRAINT tenants_pkey DO NOTHING;"),
		query("INSERT INTO tenants AS t (name) VALUES ('') ON CONFLICT (name) DO UPDATE SET email = '' WHERE t.email <> excluded.email;"),
	},
	{ // not the whole key
		"conflict-target", query("INSERT INTO claims (shard) VALUES (1) ON CONFLICT (shard, id) DO NOTHING;"),
		query("INSERT INTO claims (shard) VALUES (1) ON CONFLICT (id, shard, tenant_id) DO NOTHING;"),
	},
	{ // only a partial index
		"conflict-target", query("INSERT INTO tenants (email) VALUES ('') ON CONFLICT (email) DO NOTHING;"),
		query("INSERT INTO tenants (email) VALUES ('') ON CONFLICT (tenant_id, name) DO NOTHING;"),
	},
	{
		"conflict-target", query("INSERT INTO tenants (email) VALUES ('') ON CONFLICT (email) WHERE name <> '' DO NOTHING;"),
		query("INSERT INTO tenants (email) VALUES ('');"),
	},
	{
		"conflict-target", query("INSERT INTO strangers (a) VALUES (1) ON CONFLICT (a) DO NOTHING;"),
		query("INSERT INTO bodies (shard) VALUES (1) ON CONFLICT (shard, id) DO NOTHING;"),
	},
	{
		"mutation-order", query("DELETE FROM claims WHERE shard = 1 ORDER BY id LIMIT 10;"),
		query("DELETE FROM claims WHERE shard = 1 AND id IN (SELECT id FROM claims WHERE shard = 1 ORDER BY id LIMIT 10);"),
	},
	{
		"mutation-order", query("UPDATE claims SET state = 1 WHERE shard = 1 LIMIT 1;"),
		query("INSERT INTO bodies (shard) SELECT shard FROM claims ORDER BY shard LIMIT 1;"),
	},
}

// fixtures of write-by-key, most of them about what the names mean.
var keyedFixtures = []fixture{
	{"write-by-key", query("DELETE FROM claims;"), query("DELETE FROM claims WHERE shard = $1::INT2;")},
	{"write-by-key", query("DELETE FROM claims WHERE tenant_id = 1;"), query("DELETE FROM claims WHERE tenant_id = 1 AND shard = 1;")},
	{"write-by-key", query("UPDATE claims SET state = 1 WHERE id = '';"), query("UPDATE claims SET state = 1 WHERE (1 = shard);")},
	{"write-by-key", query("UPDATE strangers SET a = 1 WHERE a = 1;"), query("UPDATE tenants SET name = '' WHERE tenant_id = 1;")},
	{ // another table, another column
		"write-by-key", query("UPDATE tenants SET name = '' WHERE name = 'a';"),
		query("UPDATE tenants SET name = 'shard' WHERE tenants.tenant_id = 1;"),
	},
	{ // it need not hold
		"write-by-key", query("DELETE FROM claims WHERE shard = 1 OR state = 1;"),
		query("DELETE FROM claims WHERE shard = 1 AND (state = 1 OR state = 2);"),
	},
	{"write-by-key", query("DELETE FROM claims WHERE NOT shard = 1;"), query("DELETE FROM claims WHERE shard = 1 AND NOT state = 1;")},
	{"write-by-key", query("DELETE FROM claims WHERE shard >= 0;"), query("DELETE FROM claims WHERE shard IN (0, 1);")},
	{"write-by-key", query("DELETE FROM claims WHERE shard <> ALL ($1::INT2[]);"), query("DELETE FROM claims WHERE shard = ANY ($1::INT2[]);")},
	{"write-by-key", query("DELETE FROM claims WHERE shard > ANY ($1::INT2[]);"), query("DELETE FROM claims WHERE (shard) = (1);")},
	{"write-by-key", query("DELETE FROM claims WHERE shard NOT IN (1);"), query("DELETE FROM claims WHERE (id, shard) = ('', 1);")},
	{ // true for every row
		"write-by-key", query("DELETE FROM claims WHERE shard = shard;"), query("DELETE FROM claims WHERE shard = 1 + 1;"),
	},
	{"write-by-key", query("DELETE FROM claims AS c WHERE c.shard = c.state + 1;"), query("DELETE FROM claims AS c WHERE c.shard = 1;")},
	{ // the alias is the name now
		"write-by-key", query("DELETE FROM claims AS c USING bodies AS claims WHERE claims.shard = 1;"),
		query("DELETE FROM claims AS c USING bodies AS b WHERE c.shard = b.shard;"),
	},
	{
		"write-by-key",
		query("UPDATE claims AS c SET state = 1 FROM unnest($1::INT2[], $2::TEXT[]) AS i(shard, id) WHERE i.shard = 1 AND c.id = i.id;"),
		query("UPDATE claims AS c SET state = 1 FROM unnest($1::INT2[], $2::TEXT[]) AS i(shard, id) WHERE i.shard = c.shard AND c.id = i.id;"),
	},
	{ // rows
		"write-by-key", query("DELETE FROM claims WHERE (id, tenant_id) IN (('', 1));"),
		query("DELETE FROM claims WHERE (tenant_id, shard) IN ((1, 2));"),
	},
	{
		"write-by-key", query("DELETE FROM claims WHERE (shard, id) = (shard, 'a');"),
		query("DELETE FROM claims WHERE (shard, id) = (1, 'a');"),
	},
	{
		"write-by-key", query("DELETE FROM claims WHERE (shard, id) > (1, '');"),
		query("DELETE FROM claims WHERE (shard, id) IN (SELECT u.s, u.i FROM unnest($1::INT2[], $2::TEXT[]) AS u(s, i));"),
	},
	{ // correlated: it reads the row that it decides about
		"write-by-key", query("DELETE FROM claims AS c WHERE c.shard IN (SELECT c.shard FROM bodies);"),
		query("DELETE FROM claims AS c WHERE c.shard IN (SELECT shard FROM bodies);"),
	},
	{
		"write-by-key", query("DELETE FROM claims AS c WHERE c.shard = (SELECT shard);"),
		query("DELETE FROM claims AS c WHERE c.shard IN (SELECT c.shard FROM bodies AS b JOIN bodies AS c ON b.id = c.id);"),
	},
	{ // inside a WITH, too
		"write-by-key", query("WITH a AS (UPDATE claims SET state = 1 RETURNING 1 AS n) SELECT n FROM a;"),
		query("WITH a AS (UPDATE claims SET state = 1 WHERE shard = 1 RETURNING 1 AS n) SELECT n FROM a;"),
	},
}

// fixtures of rules about expressions and clauses.
var readFixtures = []fixture{
	{"no-star", query("SELECT * FROM claims;"), query("SELECT id FROM claims;")},
	{"no-star", query("SELECT c.* FROM claims AS c;"), query("SELECT count(*) FROM claims AS c;")},
	{"no-star", query("TABLE claims;"), query("SELECT id FROM claims WHERE EXISTS (SELECT 1 FROM bodies);")},
	{
		"no-star", query("DELETE FROM claims WHERE shard = 1 RETURNING *;"),
		query("DELETE FROM claims WHERE shard = 1 RETURNING id;"),
	},
	{"no-star", query("SELECT max(*) FROM claims;"), query("SELECT 2 * fence AS twice FROM claims;")},
	{
		"no-star", query("SELECT count(*) FILTER (WHERE EXISTS (SELECT * FROM bodies)) FROM claims;"),
		query("SELECT count(*) FILTER (WHERE state = 1) FROM claims;"),
	},
	{"no-locking", query("SELECT id FROM claims FOR UPDATE;"), query("SELECT id FROM claims;")},
	{"no-locking", query("SELECT id FROM (SELECT id FROM claims FOR SHARE SKIP LOCKED) AS a;"), query("SELECT id AS locked FROM claims;")},
	{"functions", query("SELECT clock_timestamp();"), query("SELECT now();")},
	{"functions", query("SELECT pg_advisory_lock(1);"), query("SELECT current_setting('a');")},
	{"functions", query("SELECT ifnull(body, '') FROM claims;"), query("SELECT coalesce(body, '') FROM claims;")},
	{"functions", query("SELECT if(true, 1, 2);"), query("SELECT CASE WHEN true THEN 1 ELSE 2 END;")},
	{"functions", query("SELECT iferror(1, 2);"), query("SELECT nullif(1, 2);")},
	{"functions", query("SELECT current_timestamp;"), query("SELECT greatest(1, least(2, 3)), extract(epoch FROM now())::INT8;")},
	{
		"functions", query("UPDATE claims SET state = abs(1) WHERE shard = 1;"),
		query("UPDATE claims SET state = length(id) WHERE shard = 1;"),
	},
	{
		"functions", migration("CREATE TABLE IF NOT EXISTS t (a UUID DEFAULT gen_random_uuid() PRIMARY KEY);"),
		migration("CREATE TABLE IF NOT EXISTS t (a TIMESTAMPTZ DEFAULT now() PRIMARY KEY);"),
	},
	{
		"functions", migration("CREATE TABLE IF NOT EXISTS t (a TEXT PRIMARY KEY CHECK (md5(a) <> ''));"),
		migration("CREATE TABLE IF NOT EXISTS t (a TEXT PRIMARY KEY CHECK (octet_length(a) < 9));"),
	},
	{
		"functions", query("SELECT g.n FROM generate_series(1, 2) AS g(n);"),
		query("SELECT g.n FROM unnest($1::INT8[]) AS g(n);"),
	},
	{"functions", query("SELECT crdb_internal.node_id();"), query("SELECT sum(fence)::INT8, min(id), max(id) FROM claims;")},
	{"cast-at-first-use", query("SELECT id FROM claims WHERE fence = $1;"), query("SELECT id FROM claims WHERE fence = $1::INT8;")},
	{"cast-at-first-use", query("SELECT id FROM claims WHERE fence = CAST($1 AS INT8);"), query("SELECT '$1' FROM claims WHERE fence = $1::INT8;")},
	{"casts-agree", query("SELECT $1::INT8 + $1;"), query("SELECT $1::INT8 + $1::INT8;")},
	{
		"casts-agree", query("SELECT id FROM claims WHERE fence = $1::INT8 AND shard = $1::INT2;"),
		query("SELECT id FROM claims WHERE fence = $1::INT8 AND shard = $2::INT2;"),
	},
	{"types", query("SELECT $1::INT;"), query("SELECT $1::INT8;")},
	{"types", query("SELECT $1::VARCHAR(3)[];"), query("SELECT $1::TEXT[], $2::BYTEA[], $3::UUID[];")},
	{"types", query("SELECT CAST(fence AS DECIMAL) FROM claims;"), query("SELECT CAST(fence AS INT2) FROM claims;")},
	{"types", query("SELECT $1::TIMESTAMP;"), query("SELECT $1::TIMESTAMPTZ, INTERVAL '1 second', $2::BOOL;")},
	{
		"types", migration("CREATE TABLE IF NOT EXISTS t (a state PRIMARY KEY);"),
		migration("CREATE TABLE IF NOT EXISTS t (a BYTEA PRIMARY KEY, b INT2, c INTERVAL);"),
	},
	{
		"types", migration("ALTER TABLE claims ADD COLUMN IF NOT EXISTS a JSONB;"),
		migration("ALTER TABLE claims ADD COLUMN IF NOT EXISTS a UUID;"),
	},
	{"system-columns", query("SELECT xmax = 0 FROM claims;"), query("SELECT fence = 0 FROM claims;")},
	{"system-columns", query("SELECT c.ctid FROM claims AS c;"), query("SELECT c.id AS ctid FROM claims AS c;")},
	{"system-columns", query("SELECT id FROM crdb_internal.jobs;"), query("SELECT id FROM public.claims;")},
	{"collate", query(`SELECT id FROM claims ORDER BY id COLLATE "C";`), query("SELECT id FROM claims ORDER BY id;")},
	{
		"collate", migration("CREATE TABLE IF NOT EXISTS t (a TEXT COLLATE en PRIMARY KEY);"),
		migration("CREATE TABLE IF NOT EXISTS t (a TEXT PRIMARY KEY);"),
	},
	{
		"collate", migration("ALTER TABLE claims ADD COLUMN IF NOT EXISTS a TEXT[] COLLATE de;"),
		migration("ALTER TABLE claims ADD COLUMN IF NOT EXISTS a TEXT[];"),
	},
	{"division", query("SELECT fence / 2 FROM claims;"), query("SELECT fence * 2 FROM claims;")},
	{"division", cockroach("SELECT fence // 2 FROM claims;"), cockroach("SELECT fence % 2 FROM claims;")},
	{"nulls-order", query("SELECT id FROM claims ORDER BY lease_until;"), query("SELECT id FROM claims ORDER BY expires_at, id;")},
	{"nulls-order", query("SELECT id FROM claims AS c ORDER BY c.lease_until;"), query("SELECT id FROM claims AS c ORDER BY c.lease_until NULLS LAST;")},
	{
		"nulls-order", query("SELECT id FROM claims WHERE state = 1 ORDER BY lease_until;"),
		query("SELECT id FROM claims WHERE state = 1 AND lease_until <= now() ORDER BY lease_until;"),
	},
	{
		"nulls-order", query("SELECT id FROM claims WHERE lease_until IS NULL ORDER BY lease_until;"),
		query("SELECT id FROM claims WHERE lease_until IS NOT NULL ORDER BY lease_until;"),
	},
	{ // NOT NULL, but of a row that need not be there
		"nulls-order", query("SELECT c.id FROM claims AS c LEFT JOIN bodies AS b ON b.id = c.id ORDER BY b.body;"),
		query("SELECT c.id FROM claims AS c JOIN bodies AS b ON b.id = c.id ORDER BY b.body;"),
	},
	{
		"nulls-order", query("SELECT s.id FROM (SELECT id FROM claims ORDER BY body) AS s;"),
		query("SELECT coalesce(body, '') AS body FROM claims ORDER BY body;"),
	},
}
