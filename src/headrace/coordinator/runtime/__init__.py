"""State that the records of an internal topic keep, coordinated by the leaders of its partitions."""
