"""What the broker does per second, beside what the machine can do: `python -m bench`."""
