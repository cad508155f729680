"""Avro, JSON Schema and Protobuf: parsing, one canonical form, and which changes old and new readers survive."""
