"""One module per API family."""
