"""Topics as Arrow columns: whole record batches off the wire and onto it, with no loop over messages in Python."""
