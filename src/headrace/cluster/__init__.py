"""Who leads what: the metadata of the cluster and where it is kept."""
