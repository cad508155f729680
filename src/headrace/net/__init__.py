"""Bytes in motion: clocks, and the connections a node makes to others."""
