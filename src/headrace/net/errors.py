"""What can go wrong on a connection that this side opened."""


class ConnectionLost(Exception):  # noqa: N818 - named for what happened
    """The connection could not be made, or is of no use any more.

    What was under way on it may or may not have been done.
    """


class AuthenticationRefused(Exception):  # noqa: N818 - named for what happened
    """The two sides do not trust each other: a certificate, a password, a mechanism. Trying again does not help."""


class VersionNotServed(Exception):  # noqa: N818 - named for the state found
    """The broker does not serve this API, or in no version that this side speaks."""
