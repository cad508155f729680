"""Writing to topics: each task in a transaction of its own, ended by the decision of the driver."""
