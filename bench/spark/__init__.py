"""Topics in Spark, beside a source that makes its rows up and, where Maven can be reached, Spark's own connector."""
