"""Topics in Spark: a data source and a sink of Arrow batches, and the pipelines declared on them."""
