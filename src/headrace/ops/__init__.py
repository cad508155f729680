"""Operator requests: what those who run a cluster ask of it, over the wire, as the `headrace` command does."""
