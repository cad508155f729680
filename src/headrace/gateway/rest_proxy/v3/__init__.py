"""REST Proxy's v3: resources of a cluster, each with its own address, and records in a stream."""
