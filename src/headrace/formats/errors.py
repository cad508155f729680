"""What is wrong with the options of a format."""

from headrace.client.errors import ClientError


class OptionError(ClientError):
    """An option has a value that cannot be meant, or is missing. The message names it and says what to set."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "INVALID_CONFIG")
