"""The names of options that the source, the sink and Spark's own writers take, and what the source says of values."""

from collections.abc import Mapping
from typing import Final

from headrace.config.setting import ConfigError
from headrace.formats import OPTION_NAMES, OptionError, check_options
from headrace.formats.options import read_options

from ..sink.options import OPTIONS as SINK_OPTIONS
from ..sink.options import parse_sink_options
from ..source.options import OPTIONS, SourceOptions, parse

TOMBSTONE: Final = "tombstone"
"""Whether a record has no value: in a compacted topic, that its key was deleted."""
METADATA: Final = ("key", "topic", "partition", "offset", "timestamp", "timestampType", "headers", TOMBSTONE)
"""What there is of a record beside its value."""
SUBSCRIPTIONS: Final = ("subscribe", "subscribePattern", "assign")
ENCODED: Final = ("avro", "json-schema", "protobuf")
"""Formats of a sink that a schema registry knows the schemas of."""
_CLIENT_PREFIX: Final = "kafka."
_OF_BATCHES: Final = ("txnAppId", "txnVersion")
_OF_BAD_RECORDS: Final = ("badrecords", "deadlettertopic", "includeheaders")
_ANY_BROKER: Final = {"kafka.bootstrap.servers": "127.0.0.1:9092"}


def is_client_setting(name: str) -> bool:
    """Whether the name is one of a setting of the client, which the client itself judges."""
    return name.startswith(_CLIENT_PREFIX)


def source_options() -> list[str]:
    return [*OPTIONS, *OPTION_NAMES]


def parsed_source(options: Mapping[str, str]) -> SourceOptions:
    """What the source makes of its options; ConfigError says which of them cannot be."""
    return parse({**_ANY_BROKER, **options}, OPTION_NAMES).for_stream()


def client_of(options: Mapping[str, str]) -> dict[str, str]:
    """The client's settings among a source's options, by Kafka's names."""
    return dict(parsed_source(options).client)


def wrong_with_source(options: Mapping[str, str]) -> str | None:
    """What the source would refuse, or None."""
    try:
        parsed_source(options)
        check_options(options)
    except (ConfigError, OptionError) as error:
        return str(error)
    return None


def dead_letter_topic(options: Mapping[str, str]) -> str:
    """The topic for records that cannot be decoded, of options that the source takes; empty if they name none."""
    return read_options(options).dead_letter_topic


def without_dead_letters(options: Mapping[str, str]) -> dict[str, str]:
    """The options, with bad records left in their column, and with what a letter needs of them."""
    kept = {name: value for name, value in options.items() if name.lower() not in _OF_BAD_RECORDS}
    return {**kept, "includeHeaders": "true"}


def sink_options() -> list[str]:
    return [name for name in SINK_OPTIONS if name not in _OF_BATCHES]


def wrong_with_sink(options: Mapping[str, str]) -> str | None:
    """What the sink would refuse, or None."""
    try:
        parse_sink_options({**_ANY_BROKER, **options})
    except (ConfigError, OptionError) as error:
        return str(error)
    return None


def file_options() -> list[str]:
    return ["compression", "maxRecordsPerFile"]
