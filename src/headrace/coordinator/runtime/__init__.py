"""State that is kept in the partitions of an internal topic, by whoever leads them."""
