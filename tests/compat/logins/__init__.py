"""Clients of others that log in by every mechanism over TLS: with what is right, wrong, expired, changed or renewed."""
