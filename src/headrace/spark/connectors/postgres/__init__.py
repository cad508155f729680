"""PostgreSQL, by psycopg: a table's rows and changes in, rows upserted and deleted out."""
