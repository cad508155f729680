"""The two ways a request can be wrong.

A `CodedError` is answered: it becomes the error code of a response, and the connection goes on.
A `ProtocolViolation` cannot be answered: what follows on the connection has no known meaning, so it is closed.
Both are caught in one place, `server.dispatch`.
"""

from kio.schema.errors import ErrorCode

__all__ = ["CodedError", "ErrorCode", "ProtocolViolation", "RecordsRefused"]


class CodedError(Exception):
    """An error that Kafka's protocol has a code for, with a message that tells the user what to do."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(message or code.name)
        self.code = code
        self.message = message or code.name.replace("_", " ")


class RecordsRefused(CodedError):
    """Some records of a batch are refused, and with them the batch. `records` are their places in it, and why."""

    def __init__(self, code: ErrorCode, message: str, records: tuple[tuple[int, str], ...]) -> None:
        super().__init__(code, message)
        self.records = records


class ProtocolViolation(Exception):
    """The peer sent bytes that no Kafka client sends; the connection is closed."""
