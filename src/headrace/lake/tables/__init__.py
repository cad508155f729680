"""Tables by their format: Parquet with a log of commits of our own, Delta Lake, Apache Iceberg."""
