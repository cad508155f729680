"""Transactions: which partitions a producer writes to as one, and how that ends. Decisions, and a service that acts."""
