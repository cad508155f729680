"""What the source asks of a cluster: which partitions there are, and which offsets they have."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from headrace.client.columnar.model import EARLIEST, LATEST, TopicPartition, UnknownPartition, UnknownTopic
from headrace.client.core.metadata import TopicImage
from headrace.config.setting import ConfigError

from .offsets import Offsets, named
from .options import Assigned, AtEnd, AtOffsets, AtTime, AtTimes, Position, SourceOptions, TopicPattern, Topics


class Logs(Protocol):
    """The part of `client.columnar.cluster.Cluster` that planning needs."""

    def topics(self) -> list[str]: ...

    def describe(self, topics: Iterable[str], max_age: float | None = None) -> dict[str, TopicImage]: ...

    def offsets(
        self, timestamps: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, int | None]: ...


class AssignedPartitions(NamedTuple):
    """Partitions to read, and the identities of their topics, by which one made anew is told from the old one."""

    partitions: set[TopicPartition]
    ids: dict[str, bytes | None]


def assigned(logs: Logs, options: SourceOptions) -> set[TopicPartition]:
    """All partitions to read; `UnknownTopic` if one of the topics named is not there."""
    match options.subscription:
        case Topics(names):
            return _all(logs.describe(names, 0.0))
        case TopicPattern():
            return still_assigned(logs, options).partitions
        case Assigned(partitions):
            there = _all(logs.describe(sorted({topic for topic, _ in partitions}), 0.0))
            if not partitions <= there:
                raise ConfigError(f"option assign names {named(partitions - there)}, which the topic does not have")
            return set(partitions)


def still_assigned(logs: Logs, options: SourceOptions) -> AssignedPartitions:
    """All partitions to read that there are at the moment."""
    subscription = options.subscription
    match subscription:
        case Topics(names):
            topics: Iterable[str] = names
        case TopicPattern(regex):
            topics = [topic for topic in logs.topics() if regex.fullmatch(topic)]
        case Assigned(partitions):
            topics = sorted({topic for topic, _ in partitions})
    images = _existing(logs, topics)
    there = _all(images)
    wanted = there & subscription.partitions if isinstance(subscription, Assigned) else there
    return AssignedPartitions(wanted, {name: image.id for name, image in images.items()})


def _existing(logs: Logs, topics: Iterable[str]) -> dict[str, TopicImage]:
    """Those of the topics that exist; one may be deleted at any moment."""
    names = list(topics)
    while names:
        try:
            return logs.describe(names, 0.0)
        except UnknownTopic as error:
            if error.topic not in names:
                raise
            names.remove(error.topic)
    return {}


def _all(images: Mapping[str, TopicImage]) -> set[TopicPartition]:
    return {TopicPartition(topic, number) for topic, image in images.items() for number in image.leaders}


def ends(logs: Logs, partitions: Iterable[TopicPartition], which: int, *, read_committed: bool = False) -> Offsets:
    """The EARLIEST or LATEST offset of each partition."""
    found = logs.offsets(dict.fromkeys(partitions, which), read_committed=read_committed)
    return {where: offset for where, offset in found.items() if offset is not None}


def ends_left(logs: Logs, partitions: Iterable[TopicPartition], which: int, *, read_committed: bool = False) -> Offsets:
    """The EARLIEST or LATEST offset of each partition that has not been deleted meanwhile."""
    left = set(partitions)
    while left:
        try:
            return ends(logs, left, which, read_committed=read_committed)
        except UnknownTopic as error:
            remaining = {where for where in left if where.topic != error.topic}
            if remaining == left:
                raise
            left = remaining
        except UnknownPartition as error:
            left.remove(error.partition)
    return {}


def resolve(
    logs: Logs, position: Position, partitions: set[TopicPartition], options: SourceOptions, *, starting: bool
) -> Offsets:
    """The offsets a position means in these partitions; `starting` or ending there."""
    match position:
        case AtEnd(which):
            return ends(logs, partitions, which, read_committed=options.read_committed)
        case AtOffsets(offsets):
            _same_partitions(partitions, offsets, "startingOffsets" if starting else "endingOffsets")
            return _at_offsets(logs, offsets, options)
        case AtTime(time):
            return _at_times(logs, dict.fromkeys(partitions, time), options, starting=starting)
        case AtTimes(times):
            side = "starting" if starting else "ending"
            _same_partitions(partitions, times, f"{side}OffsetsByTimestamp")
            return _at_times(logs, times, options, starting=starting)


def _same_partitions(partitions: set[TopicPartition], given: Offsets, option: str) -> None:
    missing, extra = partitions - given.keys(), given.keys() - partitions
    if missing:
        hint = ", with -2 for earliest and -1 for latest" if option.endswith("Offsets") else ""
        raise ConfigError(f"option {option} must name every partition{hint}; it lacks {named(missing)}")
    if extra:
        raise ConfigError(f"option {option} names {named(extra)}, which the query does not read")


def _at_offsets(logs: Logs, offsets: Offsets, options: SourceOptions) -> Offsets:
    words = {where: offset for where, offset in offsets.items() if offset in (EARLIEST, LATEST)}
    found = logs.offsets(words, read_committed=options.read_committed) if words else {}
    return offsets | {where: offset for where, offset in found.items() if offset is not None}


def _at_times(logs: Logs, times: Offsets, options: SourceOptions, *, starting: bool) -> Offsets:
    found = logs.offsets(times, read_committed=options.read_committed)
    later = {where: offset for where, offset in found.items() if offset is not None}
    none = times.keys() - later.keys()
    if none and starting and not options.latest_if_no_match:
        where = min(none)
        raise ConfigError(
            f"no record of {named([where])} is as late as {times[where]} ms; choose an earlier time, "
            "or set startingOffsetsByTimestampStrategy to latest to start at the end there"
        )
    return later | (ends(logs, none, LATEST, read_committed=options.read_committed) if none else {})
