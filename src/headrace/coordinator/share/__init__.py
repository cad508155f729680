"""The share coordinator: how far share groups have come in each partition, kept for the partitions' leaders."""
