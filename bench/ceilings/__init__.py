"""Bare servers: the least that could do the same work. Each runs in its own process and serves one client.

They print `ready 127.0.0.1:PORT` and end when their client goes.
"""
