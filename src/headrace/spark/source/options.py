"""The options of `format("headrace")` when reading: Spark's Kafka connector's own, by the same names, and ours.

`parse` turns the text of all options into one frozen value or says what is wrong with which option. What holds for
batch or for streaming queries only is checked by `for_batch` and `for_stream`, once Spark tells which it is.
Spark hands the names over in lower case, and users write them as they like, so case never matters.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from headrace.client.columnar.model import EARLIEST, LATEST, TopicPartition
from headrace.config.names import nearest, shown
from headrace.config.setting import MAX_INT, MAX_LONG, ConfigError

from ..client_options import BOOTSTRAP_NAMES, client_settings
from ..units import boolean, byte_count, milliseconds, whole_number
from .offsets import Offsets, named, parse_offsets, parse_partitions, parse_times
from .planning import Splitting

T = TypeVar("T")
_OF_ARCHIVE: Final = "archive."

OPTIONS: Final[dict[str, str]] = {
    "subscribe": "topics to read, separated by commas",
    "subscribePattern": "a regular expression that the whole name of a topic must match",
    "assign": 'partitions to read, as JSON: {"orders": [0, 1]}',
    "startingOffsets": "earliest, latest (streams only) or JSON by partition, -2 for earliest and -1 for latest",
    "endingOffsets": "latest or JSON by partition, -1 for latest; batch only",
    "startingTimestamp": "the time in ms from which every partition is read",
    "stopAtOffsets": "where a stream stops, as JSON by partition, though topics go on; streams only",
    "endingTimestamp": "the time in ms before which every partition ends; batch only",
    "startingOffsetsByTimestamp": "the time in ms from which to read, as JSON by partition",
    "endingOffsetsByTimestamp": "the time in ms before which to end, as JSON by partition; batch only",
    "startingOffsetsByTimestampStrategy": "error or latest: what to do where no record is that late",
    "maxOffsetsPerTrigger": "records of a micro-batch at most, shared out among partitions by what they have",
    "minOffsetsPerTrigger": "records to wait for before a micro-batch starts",
    "maxTriggerDelay": "how long minOffsetsPerTrigger may hold back a micro-batch, such as 15m",
    "maxBytesPerTrigger": "about how many bytes of keys and values a micro-batch has at most, such as 64m",
    "minPartitions": "about how many tasks a batch is divided into at least",
    "maxRecordsPerPartition": "records of one task at most",
    "failOnDataLoss": "whether a deleted topic or expired offsets fail the query (true) or are skipped (false)",
    "includeHeaders": "whether there is a column of headers",
    "group": "the consumer group whose offsets follow a stream, so that its lag shows",
    "pushFilters": "whether filters on topic, partition, offset and timestamp narrow what a batch reads",
    "archive": "a directory that topics were archived to: offsets that a table has are read from it; batch only",
    "groupIdPrefix": "accepted and not used: the source joins no consumer group",
    "fetchOffset.numRetries": "how often to look again when offsets seem to be lost",
    "fetchOffset.retryIntervalMs": "how long to wait before looking again",
    "kafkaConsumer.pollTimeoutMs": "how long a task waits for its records at most",
}
"""What can be said, beside the client's own settings as `kafka.<name>` and the options of value formats."""


@dataclass(frozen=True, slots=True)
class Topics:
    """Every partition of the topics named."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """Every partition of the topics whose whole name matches."""

    regex: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class Assigned:
    """These partitions."""

    partitions: frozenset[TopicPartition]


Subscription = Topics | TopicPattern | Assigned


@dataclass(frozen=True, slots=True)
class AtEnd:
    """The beginning or the end of every partition: EARLIEST or LATEST."""

    which: int


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset for each partition, EARLIEST or LATEST among them."""

    offsets: Offsets


@dataclass(frozen=True, slots=True)
class AtTime:
    """In every partition the first record of that time in ms or later."""

    time: int


@dataclass(frozen=True, slots=True)
class AtTimes:
    """In each partition the first record of its time in ms or later."""

    times: Offsets


Position = AtEnd | AtOffsets | AtTime | AtTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerLimits:
    """How much a micro-batch takes."""

    max_records: int | None = None
    max_bytes: int | None = None
    min_records: int | None = None
    max_delay: float = 900.0
    """Seconds after which a micro-batch starts with fewer than `min_records`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """All that a user said about what to read and how."""

    client: Mapping[str, str] = field(repr=False)
    """Settings of the columnar client, by Kafka's names; passwords among them."""
    subscription: Subscription
    starting: Position | None = None
    ending: Position | None = None
    stop_at: Offsets | None = None
    """How far a stream goes; a partition that is not in it has no end."""
    latest_if_no_match: bool = False
    """Where no record is as late as asked: start at the end, rather than fail."""
    trigger: TriggerLimits = field(default_factory=TriggerLimits)
    splitting: Splitting = field(default_factory=Splitting)
    fail_on_data_loss: bool = True
    with_headers: bool = False
    read_committed: bool = False
    group: str | None = None
    push_filters: bool = False
    retries: int = 3
    retry_seconds: float = 1.0
    archive: str = ""
    """Where the topics were archived; empty where all is read from the brokers."""
    archive_settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of the archive's object store and catalog, as `storage.NAME` and `catalog.NAME`."""

    def for_batch(self) -> "SourceOptions":
        """These options, if a batch query can have them."""
        if self.stop_at is not None:
            raise ConfigError("stopAtOffsets is for streams: a batch ends at endingOffsets")
        _refuse_end(self.starting, "startingOffsets", LATEST, "a batch would read nothing; use a streaming query")
        _refuse_end(self.ending, "endingOffsets", EARLIEST, "a batch would read nothing")
        _refuse_backwards(self.starting, self.ending)
        return self

    def for_stream(self) -> "SourceOptions":
        """These options, if a streaming query can have them."""
        if self.ending is not None:
            raise ConfigError(
                "a stream has no end: leave out endingOffsets, endingTimestamp and endingOffsetsByTimestamp, "
                "read a batch, or say stopAtOffsets"
            )
        if self.archive:
            raise ConfigError(
                "archive is for batches: a stream begins where the brokers do. Read a batch, or replay the table into "
                "a topic with `headrace pipeline replay`"
            )
        return self


def parse(given: Mapping[str, str], others: Iterable[str] = ()) -> SourceOptions:
    """The options a user gave; `others` are the names that someone else understands, such as a value format.

    `ConfigError` names the option that cannot be and says what to write instead.
    """
    options = {name.lower(): value for name, value in given.items()}
    _refuse_unknown(options, others)
    client = client_settings(options)
    return SourceOptions(
        client=_patience(options) | client.connection,
        subscription=_subscription(options),
        starting=_position(options, "starting"),
        ending=_position(options, "ending"),
        stop_at=_stop_at(options),
        latest_if_no_match=_one(options, "startingOffsetsByTimestampStrategy", _strategy, False),
        trigger=_trigger(options),
        splitting=Splitting(
            min_partitions=_one(options, "minPartitions", whole_number(1, MAX_INT), None),
            max_records=_one(options, "maxRecordsPerPartition", whole_number(1, MAX_LONG), None),
        ),
        fail_on_data_loss=_one(options, "failOnDataLoss", boolean, True),
        with_headers=_one(options, "includeHeaders", boolean, False),
        read_committed=client.read_committed,
        group=_group(options, client.group),
        push_filters=_one(options, "pushFilters", boolean, False),
        retries=_one(options, "fetchOffset.numRetries", whole_number(0, MAX_INT), 3),
        retry_seconds=_one(options, "fetchOffset.retryIntervalMs", whole_number(0, MAX_LONG), 1000) / 1000,
        archive=options.get("archive", "").strip(),
        archive_settings={
            name.removeprefix(_OF_ARCHIVE): value for name, value in options.items() if name.startswith(_OF_ARCHIVE)
        },
    )


def _patience(options: Mapping[str, str]) -> dict[str, str]:
    limit = _one(options, "kafkaConsumer.pollTimeoutMs", whole_number(1, MAX_INT), None)
    return {} if limit is None else {"default.api.timeout.ms": str(limit)}


def _refuse_unknown(options: Mapping[str, str], others: Iterable[str]) -> None:
    known = [*OPTIONS, *others]
    names = {name.lower() for name in known} | set(BOOTSTRAP_NAMES)
    for name in options:
        if name == "path":
            raise ConfigError("load() takes no path here: name the topics with option subscribe")
        if name not in names and not name.startswith(("kafka.", f"{_OF_ARCHIVE}storage.", f"{_OF_ARCHIVE}catalog.")):
            raise ConfigError(f"unknown option {shown(name)}{nearest_option(name, known)}")


def nearest_option(name: str, known: Iterable[str]) -> str:
    """A hint to end an error message with: the option that `name` most likely stands for, as it is written."""
    by_lower = {option.lower(): option for option in known} | {"kafka.bootstrap.servers": "kafka.bootstrap.servers"}
    hint = nearest(name, by_lower)
    for lower, option in by_lower.items():
        if hint.endswith(f" {lower}?"):
            return hint.replace(lower, option)
    return hint


def _one(options: Mapping[str, str], name: str, read: Callable[[str], T], default: T) -> T:
    text = options.get(name.lower())
    if text is None:
        return default
    try:
        return read(text.strip())
    except ValueError as error:
        raise ConfigError(f"option {name} must be {error}, not '{shown(text)}'") from None


def _strategy(text: str) -> bool:
    if text.lower() not in ("error", "latest"):
        raise ValueError("error or latest")
    return text.lower() == "latest"


def _subscription(options: Mapping[str, str]) -> Subscription:
    ways = [name for name in ("subscribe", "subscribePattern", "assign") if name.lower() in options]
    if len(ways) != 1:
        problem = f"{' and '.join(ways)} exclude each other" if ways else "nothing says what to read"
        raise ConfigError(f"{problem}: give exactly one of subscribe, subscribePattern and assign")
    text = options[ways[0].lower()].strip()
    match ways[0]:
        case "subscribe":
            return _topics(text)
        case "subscribePattern":
            return _pattern(text)
        case _:
            return Assigned(parse_partitions("assign", text))


def _topics(text: str) -> Topics:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ConfigError("option subscribe names no topic; write for example orders,payments")
    return Topics(names)


def _pattern(text: str) -> TopicPattern:
    if not text:
        raise ConfigError("option subscribePattern is empty; write for example orders-.*")
    try:
        return TopicPattern(re.compile(text))
    except re.error as error:
        raise ConfigError(f"option subscribePattern is no regular expression: {error} in '{shown(text)}'") from None


def _position(options: Mapping[str, str], side: str) -> Position | None:
    """Where to start or to end: a time says more than times by partition, and those more than offsets."""
    if f"{side}timestamp" in options:
        name = f"{side}Timestamp"
        return AtTime(_one(options, name, whole_number(0, MAX_LONG), 0))
    if f"{side}offsetsbytimestamp" in options:
        return AtTimes(parse_times(f"{side}OffsetsByTimestamp", options[f"{side}offsetsbytimestamp"]))
    text = options.get(f"{side}offsets", "").strip()
    if not text:
        return None
    words = {"earliest": EARLIEST, "latest": LATEST}
    if text.lower() in words:
        return AtEnd(words[text.lower()])
    if not text.startswith("{"):
        raise ConfigError(f"option {side}Offsets must be earliest, latest or JSON, not '{shown(text)}'")
    return AtOffsets(parse_offsets(f"{side}Offsets", text))


def _stop_at(options: Mapping[str, str]) -> Offsets | None:
    text = options.get("stopatoffsets")
    if text is None:
        return None
    offsets = parse_offsets("stopAtOffsets", text)
    if any(offset < 0 for offset in offsets.values()):
        raise ConfigError(f"option stopAtOffsets must have offsets from 0 on, not '{shown(text)}'")
    return offsets


def _trigger(options: Mapping[str, str]) -> TriggerLimits:
    records = whole_number(1, MAX_LONG)
    trigger = TriggerLimits(
        max_records=_one(options, "maxOffsetsPerTrigger", records, None),
        max_bytes=_one(options, "maxBytesPerTrigger", byte_count, None),
        min_records=_one(options, "minOffsetsPerTrigger", records, None),
        max_delay=_one(options, "maxTriggerDelay", milliseconds, 900_000) / 1000,
    )
    low, high = trigger.min_records, trigger.max_records
    if low is not None and high is not None and low > high:
        raise ConfigError(f"minOffsetsPerTrigger ({low}) is higher than maxOffsetsPerTrigger ({high})")
    return trigger


def _group(options: Mapping[str, str], client_group: str | None) -> str | None:
    group = options.get("group", "").strip() or None
    if group and client_group and group != client_group:
        raise ConfigError(f"group is '{shown(group)}' but kafka.group.id is '{shown(client_group)}'; give one of them")
    return group or client_group


def _refuse_end(position: Position | None, option: str, end: int, why: str) -> None:
    word = "earliest" if end == EARLIEST else "latest"
    if position == AtEnd(end):
        raise ConfigError(f"option {option} cannot be {word} in a batch query: {why}")
    if isinstance(position, AtOffsets):
        found = [where for where, offset in position.offsets.items() if offset == end]
        if found:
            raise ConfigError(f"option {option} cannot be {word} ({end}) for {named(found)} in a batch query: {why}")


def _refuse_backwards(starting: Position | None, ending: Position | None) -> None:
    match starting, ending:
        case AtOffsets(first), AtOffsets(last):
            pass
        case AtTimes(first), AtTimes(last):
            pass
        case _:
            return
    if first.keys() != last.keys():
        raise ConfigError(f"starting and ending differ in their partitions: {named(first.keys() ^ last.keys())}")
    wrong = [where for where, start in first.items() if start > last[where] >= 0]
    if wrong:
        raise ConfigError(f"the start lies behind the end for {named(wrong)}")
