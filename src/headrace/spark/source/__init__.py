"""Reading topics: what to read is decided purely, tasks move Arrow batches."""
