-- The store's time is the database's.
SELECT now()
