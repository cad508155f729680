"""Topics into tables of a lake, on Spark: workers write files, the driver commits them."""
