"""A producer as the coordinator sees it: requests through the wire, codes back."""

from datetime import timedelta
from typing import Any

from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from tests.support.coordinator.world import World

TOPIC = "t"


class Producer:
    """Asks in given versions; knows its id and epoch."""

    def __init__(self, world: World, name: str = "x", *, version: int = 3, connection: int = 1) -> None:
        self.world = world
        self.name = name
        self.version = version
        self.connection = connection
        self.id = -1
        self.epoch = -1

    def init(self, timeout_ms: int = 60_000, *, version: int = 4, resumes: bool = False) -> ErrorCode:
        answer = self.world.ask(
            ApiKey.INIT_PRODUCER_ID,
            version,
            transactional_id=self.name,
            transaction_timeout=timedelta(milliseconds=timeout_ms),
            producer_id=self.id if resumes else -1,
            producer_epoch=self.epoch if resumes else -1,
        )
        if answer.error_code is ErrorCode.none:
            self.id, self.epoch = answer.producer_id, answer.producer_epoch
        return ErrorCode(answer.error_code)

    def add(self, *partitions: int, topic: str = TOPIC, version: int | None = None) -> ErrorCode:
        codes = self.add_each([(topic, list(partitions))], version)
        assert len(set(codes)) == 1
        return codes[0]

    def add_each(self, topics: list[tuple[str, list[int]]], version: int | None = None) -> list[ErrorCode]:
        answer = self.world.ask(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            self.version if version is None else version,
            connection=self.connection,
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[{"name": name, "partitions": indexes} for name, indexes in topics],
        )
        found = answer.results_by_topic_v3_and_below
        return [ErrorCode(each.partition_error_code) for topic in found for each in topic.results_by_partition]

    def add_offsets(self, group: str = "g", *, version: int = 3) -> ErrorCode:
        answer = self.world.ask(
            ApiKey.ADD_OFFSETS_TO_TXN,
            version,
            connection=self.connection,
            transactional_id=self.name,
            producer_id=self.id,
            producer_epoch=self.epoch,
            group_id=group,
        )
        return ErrorCode(answer.error_code)

    def end(self, *, commit: bool = True, version: int | None = None) -> ErrorCode:
        answer = self.world.ask(ApiKey.END_TXN, self.version if version is None else version, **self.end_values(commit))
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.none and (version or self.version) >= 5:
            self.id, self.epoch = answer.producer_id, answer.producer_epoch
        return code

    def end_values(self, commit: bool = True) -> dict[str, Any]:
        return {
            "connection": self.connection,
            "transactional_id": self.name,
            "producer_id": self.id,
            "producer_epoch": self.epoch,
            "committed": commit,
        }

    def state(self) -> str:
        """What the coordinator knows of it, whether or not there is a time at which it began."""
        return self.world.run(self.world.transactions.describe(self.name)).state.value

    def describe(self) -> Any:
        """The same through the wire, while a transaction is open: kio cannot read that there is no time."""
        answer = self.world.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[self.name])
        return answer.transaction_states[0]
