"""Clients of schema registries that other people made, against ours."""
