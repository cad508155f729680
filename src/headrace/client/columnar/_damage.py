"""The one error for bytes that cannot be read."""

from typing import Final

CORRUPT: Final = "CORRUPT_MESSAGE"


class UnreadableBatch(Exception):
    """A batch that cannot be read, the offset it should begin at, and Kafka's name for the reason."""

    def __init__(self, reason: str, offset: int, code: str = CORRUPT) -> None:
        super().__init__(reason)
        self.reason = reason
        self.offset = offset
        self.code = code
