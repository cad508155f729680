"""Pipelines as a service: definitions kept in the cluster, run and watched by `headrace pipeline service`."""
