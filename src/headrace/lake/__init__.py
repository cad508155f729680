"""Topics as tables: Parquet files, Delta Lake and Apache Iceberg, written exactly once and read together with topics.

Nothing here needs Spark, which only brings workers to write with (`headrace.spark.archive`).
"""

from .reading import files, read, scan

__all__ = ["files", "read", "scan"]
