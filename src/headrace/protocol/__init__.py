"""Bytes to values and back. Nothing here does I/O."""
