"""For tests, here and in the projects of our users: an in-process broker, simulated clock and disk."""
