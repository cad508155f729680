"""A client for programs that run on an event loop: what the gateway, which serves many users at once, is built on.

`client.Client` is one user's view of a cluster: metadata that follows leaders, an idempotent producer that gathers what
is sent at the same time, reads with long polls, groups and administration. Errors are `CodedError` for what a broker
refused, `AuthenticationRefused` for whom it does not know, `Unavailable` for what could not be done in time.
"""
