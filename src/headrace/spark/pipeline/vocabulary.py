"""The names of options that the source, the sink and Spark's own writers take."""

from typing import Final

SUBSCRIPTIONS: Final = ("subscribe", "subscribePattern", "assign")
_CLIENT_PREFIX: Final = "kafka."


def is_client_setting(name: str) -> bool:
    """Whether the name is one of a setting of the client, which the client itself judges."""
    return name.startswith(_CLIENT_PREFIX)


def source_options() -> list[str]:
    return [*SUBSCRIPTIONS, "startingOffsets", "maxOffsetsPerTrigger", "format", "schema", "group", "failOnDataLoss"]


def sink_options() -> list[str]:
    return []


def file_options() -> list[str]:
    return ["compression", "maxRecordsPerFile"]
