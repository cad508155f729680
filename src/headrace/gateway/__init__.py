"""HTTP beside the brokers: a client of the cluster like any other."""
