"""The schema registry's topic: its records, and the state they amount to. Brokers read it, the registry also writes."""
