"""Groups of members that are killed, join and restart, checked from the logs the members write.

`member` is a running member and its log, `trial` a group at work, `scenarios` what happens to it, `check` what must
hold in the logs whatever happens, and `runner` asks every client.
"""
