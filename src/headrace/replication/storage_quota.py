"""How much topics may hold: each by its own setting, and all together whose names begin alike.

What counts are the bytes of the logs of leaders, once, however many replicas there are. A broker knows the logs that it
leads, so it gives them their part of the quota: of a topic with ten partitions of which it leads four, four tenths.
Every `LOOK_SECONDS` it looks how much room that leaves; what is produced meanwhile is taken from it. What retention or
the deletion of records frees is room again. Readers and replicas are never held back.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from headrace.cluster.image import ClusterImage
from headrace.protocol.errors import CodedError, ErrorCode

from .partition import Partition, Room
from .replica_manager import ReplicaManager

LOOK_SECONDS: Final = 1.0
NO_QUOTA: Final = -1
SETTING: Final = "headrace.storage.quota.bytes"


class StorageQuotas:
    """Keeps the partitions of one broker within their quotas."""

    def __init__(
        self, replicas: ReplicaManager, image: ClusterImage, prefixes: Callable[[], Mapping[str, float]]
    ) -> None:
        self._replicas = replicas
        self._image = image
        self._prefixes = prefixes
        """Quotas by what the names of topics begin with."""
        self._limited: list[Partition] = []
        """Partitions that have been given room."""

    def look(self) -> None:
        """Give every partition that is led here and has a quota what room there is."""
        for partition in self._limited:
            partition.rooms = ()
        self._limited = []
        prefixes = self._prefixes()
        if prefixes:
            self._look_at_prefixes(prefixes)
        for topic, quota in self._replicas.storage_quotas.items():
            known = self._image.topic(topic)
            led = _led(self._replicas.partitions_of(topic))
            if known is not None and led:
                what = f"topic {topic} holds what {SETTING}={quota} allows it"
                self._give(led, _room(what, quota, led, len(known.partitions)))

    def _look_at_prefixes(self, prefixes: Mapping[str, float]) -> None:
        led: dict[str, list[Partition]] = {}
        counts: dict[str, int] = {}
        lengths = sorted({len(prefix) for prefix in prefixes})
        for topic in self._image.topics():
            for prefix in (topic.name[:length] for length in lengths):
                if prefix in prefixes:
                    counts[prefix] = counts.get(prefix, 0) + len(topic.partitions)
                    led.setdefault(prefix, []).extend(_led(self._replicas.partitions_of(topic.name)))
        for prefix, partitions in led.items():
            quota = prefixes[prefix]
            what = f"topics that begin with {prefix} hold what their quota storage_bytes={quota:.0f} allows them"
            self._give(partitions, _room(what, quota, partitions, counts[prefix]))

    def _give(self, partitions: Iterable[Partition], room: Room) -> None:
        for partition in partitions:
            partition.rooms = (*partition.rooms, room)
            self._limited.append(partition)


def check_room(rooms: tuple[Room, ...], size: int) -> None:
    """`CodedError` where there is no room for a batch of so many bytes."""
    for room in rooms:
        if room.left < size:
            raise CodedError(
                ErrorCode.policy_violation,
                f"{room.what}, and a batch of {size} bytes has no room: raise the quota, or wait until retention has "
                "deleted records",
            )


def take_room(rooms: tuple[Room, ...], size: int) -> None:
    """A batch of so many bytes was written."""
    for room in rooms:
        room.left -= size


def _led(partitions: Iterable[Partition]) -> list[Partition]:
    return [partition for partition in partitions if partition.is_leader and not partition.is_internal]


def _room(what: str, quota: float, led: list[Partition], count: int) -> Room:
    share = quota * len(led) / max(count, len(led), 1)
    return Room(what, share - sum(partition.log.size_bytes for partition in led))
