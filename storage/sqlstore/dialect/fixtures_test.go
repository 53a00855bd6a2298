package dialect

// fixture is SQL that breaks one rule, and beside it SQL that breaks none.
type fixture struct {
	rule      string
	bad, good map[string]string // file name: text
}

// base is the schema that the fixtures are about.
const base = `-- Why: for the fixtures.
CREATE TABLE IF NOT EXISTS claims (
  shard INT2 NOT NULL, tenant_id INT8 NOT NULL, id TEXT NOT NULL,
  state INT2 NOT NULL, fence INT8 NOT NULL, lease_until TIMESTAMPTZ,
  expires_at TIMESTAMPTZ NOT NULL, body BYTEA,
  PRIMARY KEY (shard, tenant_id, id)
);
CREATE TABLE IF NOT EXISTS bodies (
  shard INT2 NOT NULL, id TEXT NOT NULL, body BYTEA NOT NULL, PRIMARY KEY (shard, id)
);
CREATE TABLE IF NOT EXISTS tenants (
  tenant_id INT8 NOT NULL PRIMARY KEY, name TEXT NOT NULL UNIQUE, email TEXT
);
CREATE UNIQUE INDEX IF NOT EXISTS tenants_pair ON tenants (tenant_id, name);
CREATE UNIQUE INDEX IF NOT EXISTS tenants_email ON tenants (email) WHERE name <> '';
`

// query, migration and cockroach make the file of a fixture.
func query(sql string) map[string]string {
	return one("queries/x.sql", "-- Why: it is a fixture.\n"+sql)
}

func migration(sql string) map[string]string {
	return one("migrations/002_x.sql", "-- Why: it is a fixture.\n"+sql)
}

func cockroach(sql string) map[string]string {
	return one("queries/x.cockroach.sql", "-- Why: it is a fixture.\n-- only: it is a fixture\n"+sql)
}

func one(name, text string) map[string]string { return map[string]string{name: text} }

// fixtures of rules about whole files.
var fileFixtures = []fixture{
	{"parse", query("LOCK TABLE claims;"), query("SELECT 1 AS one;")},
	{"parse", query("LISTEN claims;"), one("queries/x.postgres.sql", "-- Why.\n-- only: a fixture\nLISTEN claims;")},
	{"parse", query("NOTIFY claims;"), query("SELECT 'NOTIFY claims' AS text;")},
	{
		"parse", query("MERGE INTO claims USING bodies ON true WHEN MATCHED THEN DELETE;"),
		query("DELETE FROM claims WHERE shard = 1;"),
	},
	{ // the parser panics
		"parse", migration("DO $$ BEGIN END $$;"),
		one("migrations/002_x.postgres.sql", "-- Why.\n-- only: a fixture\nDO $$ BEGIN END $$;"),
	},
	{
		"parse", migration(`CREATE TABLE IF NOT EXISTS t (a TEXT COLLATE "C" PRIMARY KEY);`),
		map[string]string{
			"migrations/002_x.postgres.sql":  `-- Why.` + "\n" + `CREATE TABLE IF NOT EXISTS t (a TEXT COLLATE "C" PRIMARY KEY);`,
			"migrations/002_x.cockroach.sql": "-- Why.\nCREATE TABLE IF NOT EXISTS t (a TEXT PRIMARY KEY);",
		},
	},
	{"one-statement", query("SELECT 1 AS a; SELECT 2 AS b;"), query("SELECT 1 AS a;")},
	{"one-statement", query(""), query("SELECT 1 AS a")},
	{
		"one-statement", migration("-- Nothing yet."),
		migration("DROP INDEX IF EXISTS tenants@a; DROP INDEX IF EXISTS tenants@b;"),
	},
	{"why", one("queries/x.sql", "SELECT 1 AS a;"), one("queries/x.sql", "-- As a test.\nSELECT 1 AS a;")},
	{"why", one("queries/x.sql", "SELECT 1 AS a; -- too late"), one("queries/x.sql", "--\n-- As a test.\nSELECT 1 AS a;")},
	{"why", one("queries/x.sql", "-- -----\nSELECT 1 AS a;"), one("queries/x.sql", "-- Why?\nSELECT 1 AS a;")},
	{
		"why", one("queries/x.cockroach.sql", "-- only: a fixture\nSELECT 1 AS a;"),
		one("queries/x.cockroach.sql", "-- only: a fixture\n-- Why.\nSELECT 1 AS a;"),
	},
	{
		"why", one("queries/x.postgres.sql", "-- only: a fixture\nSELECT 1 AS a;"),
		one("queries/x.postgres.sql", "-- Why.\n-- only: a fixture\nSELECT 1 AS a;"),
	},
	{"twins", one("queries/x.cockroach.sql", "-- Why.\nSELECT 1 AS a;"), cockroach("SELECT 1 AS a;")},
	{
		"twins", one("queries/x.postgres.sql", "-- Why.\nSELECT 1 AS a;"),
		map[string]string{"queries/x.postgres.sql": "-- Why.\nSELECT 1", "queries/x.cockroach.sql": "-- Why.\nSELECT 1"},
	},
	{
		"twins", map[string]string{"queries/x.postgres.sql": "-- Why.\nSELECT 1", "other/x.cockroach.sql": "-- Why.\nSELECT 1"},
		map[string]string{"queries/x.sql": "-- Why.\nSELECT 1", "other/x.sql": "-- Why.\nSELECT 1"},
	},
	{
		"twins", map[string]string{"queries/x.sql": "-- Why.\nSELECT 1", "queries/x.cockroach.sql": "-- Why.\n-- only: it\nSELECT 1"},
		cockroach("SELECT 1"),
	},
	{
		"twins", map[string]string{"queries/x.postgres.sql": "-- Why.\nSELECT 1", "queries/x.cockroach.sql": "-- Why.\n-- only: it\nSELECT 1"},
		cockroach("SELECT 1"),
	},
	{"twins", query("-- only: all\nSELECT 1"), query("-- only one\nSELECT 1")},
	{"twins", one("queries/x.cockroach.sql", "-- Why.\n-- only:\nSELECT 1"), cockroach("SELECT 1")},
	{
		"ddl-apart", migration("CREATE INDEX IF NOT EXISTS i ON claims (state); UPDATE tenants SET name = '' WHERE tenant_id = 1;"),
		migration("CREATE INDEX IF NOT EXISTS i ON claims (state); DROP INDEX IF EXISTS claims@j;"),
	},
}

// fixtures of rules about the schema, and about what only CockroachDB has.
var ddlFixtures = []fixture{
	{"statement-kind", migration("CREATE TYPE state AS ENUM ('a');"), migration("DROP TABLE IF EXISTS bodies;")},
	{
		"statement-kind", migration("CREATE TABLE IF NOT EXISTS t AS SELECT 1 AS a;"),
		migration("CREATE TABLE IF NOT EXISTS t (a INT8 PRIMARY KEY);"),
	},
	{"statement-kind", query("TRUNCATE claims;"), query("DELETE FROM claims WHERE shard = 1;")},
	{"statement-kind", query("SAVEPOINT a;"), query("SELECT 1 AS savepoint;")},
	{"statement-kind", query("SET statement_timeout = 1;"), query("SET LOCAL statement_timeout = 1;")},

	{
		"guarded-ddl", migration("CREATE TABLE t (a INT8 PRIMARY KEY);"),
		migration("CREATE TABLE IF NOT EXISTS t (a INT8 PRIMARY KEY);"),
	},
	{"guarded-ddl", migration("CREATE INDEX i ON claims (state);"), migration("CREATE INDEX IF NOT EXISTS i ON claims (state);")},
	{"guarded-ddl", migration("DROP TABLE bodies;"), migration("DROP TABLE IF EXISTS bodies;")},
	{"guarded-ddl", migration("DROP INDEX i;"), migration("DROP INDEX IF EXISTS i;")},
	{
		"guarded-ddl", migration("ALTER TABLE claims ADD COLUMN a INT8;"),
		migration("ALTER TABLE claims ADD COLUMN IF NOT EXISTS a INT8;"),
	},
	{
		"guarded-ddl", migration("ALTER TABLE IF EXISTS claims ADD COLUMN IF NOT EXISTS a INT8, DROP COLUMN body;"),
		migration("ALTER TABLE claims ADD COLUMN IF NOT EXISTS a INT8, DROP COLUMN IF EXISTS body;"),
	},
	{
		"guarded-ddl", migration("ALTER TABLE claims DROP CONSTRAINT c;"),
		migration("ALTER TABLE claims DROP CONSTRAINT IF EXISTS c;"),
	},
	{
		"guarded-ddl", migration("ALTER TABLE claims ADD CONSTRAINT IF NOT EXISTS c CHECK (state > 0);"),
		cockroach("ALTER TABLE claims ADD CONSTRAINT IF NOT EXISTS c CHECK (state > 0);"),
	},
	{
		"guarded-ddl", cockroach("ALTER TABLE claims ADD CONSTRAINT c UNIQUE (state);"),
		cockroach("ALTER TABLE claims ADD CONSTRAINT IF NOT EXISTS c UNIQUE (state);"),
	},
	{
		"guarded-ddl", migration("ALTER TABLE claims RENAME COLUMN body TO a;"),
		migration("ALTER TABLE claims ALTER COLUMN state SET DEFAULT 1;"),
	},
	{
		"guarded-ddl", migration("ALTER TABLE claims ALTER PRIMARY KEY USING COLUMNS (id);"),
		migration("ALTER TABLE claims ALTER COLUMN body SET NOT NULL;"),
	},
	{
		"primary-key", migration("CREATE TABLE IF NOT EXISTS t (a INT8 UNIQUE);"),
		migration("CREATE TABLE IF NOT EXISTS t (a INT8, PRIMARY KEY (a));"),
	},
	{
		"generated-keys", migration("CREATE TABLE IF NOT EXISTS t (a SERIAL8 PRIMARY KEY);"),
		migration("CREATE TABLE IF NOT EXISTS t (serial INT8 PRIMARY KEY);"),
	},
	{
		"generated-keys", migration("CREATE TABLE IF NOT EXISTS t (a INT8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY);"),
		migration("CREATE TABLE IF NOT EXISTS t (a INT8 DEFAULT 1 PRIMARY KEY);"),
	},
	{
		"upsert", query("UPSERT INTO tenants (tenant_id, name) VALUES (1, '');"),
		cockroach("UPSERT INTO tenants (tenant_id, name) VALUES (1, '');"),
	},
	{
		"as-of-system-time", query("SELECT id FROM claims AS OF SYSTEM TIME '-10s' WHERE shard = 1;"),
		cockroach("SELECT id FROM claims AS OF SYSTEM TIME '-10s' WHERE shard = 1;"),
	},
	{
		"as-of-system-time", cockroach("SELECT id FROM claims AS OF SYSTEM TIME $1::INTERVAL;"),
		cockroach("SELECT id FROM claims AS OF SYSTEM TIME '-1m' WHERE shard = $1::INT2;"),
	},
	{
		"family", migration("CREATE TABLE IF NOT EXISTS t (a INT8 PRIMARY KEY, FAMILY f (a));"),
		cockroach("CREATE TABLE IF NOT EXISTS t (a INT8 PRIMARY KEY, FAMILY f (a));"),
	},
	{
		"family", migration("CREATE TABLE IF NOT EXISTS t (a INT8 CREATE FAMILY f PRIMARY KEY);"),
		migration("CREATE TABLE IF NOT EXISTS t (families INT8 PRIMARY KEY);"),
	},
	{
		"storing", migration("CREATE INDEX IF NOT EXISTS i ON claims (state) STORING (fence);"),
		migration("CREATE INDEX IF NOT EXISTS i ON claims (state) INCLUDE (fence);"),
	},
	{
		"storing", migration("CREATE UNIQUE INDEX IF NOT EXISTS i ON claims (state) COVERING (fence);"),
		cockroach("CREATE UNIQUE INDEX IF NOT EXISTS i ON claims (state) STORING (fence);"),
	},
	{
		"storing", migration("CREATE TABLE IF NOT EXISTS t (a INT8 PRIMARY KEY, b INT8, UNIQUE (b) STORING (a));"),
		migration("CREATE TABLE IF NOT EXISTS t (a INT8 PRIMARY KEY, b INT8, UNIQUE (b) INCLUDE (a));"),
	},
	{
		"using-hash", migration("CREATE INDEX IF NOT EXISTS i ON claims (state) USING HASH;"),
		cockroach("CREATE INDEX IF NOT EXISTS i ON claims (state) USING HASH;"),
	},
	{
		"using-hash", migration("CREATE TABLE IF NOT EXISTS t (a INT8 PRIMARY KEY USING HASH);"),
		cockroach("CREATE TABLE IF NOT EXISTS t (a INT8 PRIMARY KEY USING HASH);"),
	},
	{
		"using-hash", migration("CREATE TABLE IF NOT EXISTS t (a INT8, PRIMARY KEY (a) USING HASH);"),
		migration("CREATE TABLE IF NOT EXISTS t (hash INT8, PRIMARY KEY (hash));"),
	},
}
