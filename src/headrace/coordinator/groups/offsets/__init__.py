"""Committed offsets: kept, fetched, deleted, expired, and committed as part of transactions."""
