"""The SDK: what programs use to talk to a cluster."""
