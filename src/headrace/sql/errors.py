"""What is wrong with a query."""

from headrace.client.errors import ClientError


class SqlError(ClientError):
    """A query cannot be run, or cannot go on; the message says why and what to do."""

    def __init__(self, message: str, code: str = "_INVALID_ARG") -> None:
        super().__init__(message, code)


class BadRecords(SqlError):
    """A record cannot be decoded, and the query was to fail then."""
