"""What every client of ours does the same way, without I/O; `client.aio` and `client.columnar` drive it.

`handshake` (versions, SASL), `conversation` (requests and answers of one connection), `codes` (what to do about an
error code), `metadata` (brokers, topics, leaders, coordinators), and a builder and a reader for each API.
"""
