"""Members of a group, one program per client, each in a process of its own so that it can be killed.

A member is started with one argument, an `Order` in JSON. It writes a line of JSON for everything that happens to
it, stamped with the machine's monotonic clock, and closes its consumer when its standard input ends.
"""
