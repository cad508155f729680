"""How much a client may ask for: who is limited, to what, and what has been used of it. No I/O, time is an argument."""
