"""A cluster that is a few numbers: what the planner asks of logs, without a broker."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace.client.columnar.model import EARLIEST, LATEST, TopicPartition, UnknownPartition, UnknownTopic
from headrace.client.core.metadata import Leader, TopicImage


@dataclass
class FakeLog:
    """A partition: the offsets it has, and the time of each record in ms where a test cares."""

    earliest: int = 0
    latest: int = 0
    stable: int | None = None
    times: dict[int, int] = field(default_factory=dict)

    def at(self, wanted: int, *, read_committed: bool) -> int | None:
        end = self.stable if read_committed and self.stable is not None else self.latest
        if wanted == LATEST:
            return end
        if wanted == EARLIEST:
            return self.earliest
        return next((o for o in range(self.earliest, end) if self.times.get(o, o) >= wanted), None)


class FakeLogs:
    """Topics of fake partitions; counts the requests it gets."""

    def __init__(self, topics: Mapping[str, list[FakeLog]]) -> None:
        self.by_topic = dict(topics)
        self.ids = {topic: topic.encode() for topic in topics}
        self.metadata_requests = 0
        self.offset_requests = 0

    def topics(self) -> list[str]:
        return list(self.by_topic)

    def describe(self, topics: Iterable[str], max_age: float | None = None) -> dict[str, TopicImage]:
        self.metadata_requests += 1
        return {topic: self._image(topic) for topic in topics}

    def offsets(
        self, wanted: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, int | None]:
        self.offset_requests += 1
        return {where: self._log(where).at(which, read_committed=read_committed) for where, which in wanted.items()}

    def delete(self, topic: str) -> None:
        del self.by_topic[topic]

    def create(self, topic: str, *logs: FakeLog) -> None:
        self.by_topic[topic] = list(logs)
        self.ids[topic] = self.ids.get(topic, b"") + b"'"

    def _image(self, topic: str) -> TopicImage:
        leaders = {number: Leader(0, 0) for number in range(len(self._topic(topic)))}
        return TopicImage(name=topic, id=self.ids[topic], is_internal=False, leaders=leaders)

    def _log(self, where: TopicPartition) -> FakeLog:
        logs = self._topic(where.topic)
        if where.partition >= len(logs):
            raise UnknownPartition(where, len(logs))
        return logs[where.partition]

    def _topic(self, topic: str) -> list[FakeLog]:
        if topic not in self.by_topic:
            raise UnknownTopic(topic)
        return self.by_topic[topic]


class FakeClock:
    """A clock that stands still until it is moved; sleeping moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
