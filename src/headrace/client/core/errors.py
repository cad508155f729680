"""What can go wrong on a connection that this side opened."""


class ConnectionLost(Exception):
    """The connection could not be made, or is of no use any more.

    What was under way on it may or may not have been done.
    """


class AuthenticationRefused(Exception):
    """The two sides do not trust each other: a certificate, a password, a mechanism. Trying again does not help."""


def certificate_refused(address: object, reason: str) -> AuthenticationRefused:
    """The error of a broker whose certificate is not trusted."""
    return AuthenticationRefused(f"{address}: the broker's certificate is refused: {reason}")


class VersionNotServed(Exception):
    """The broker does not serve this API, or in no version that this side speaks."""
