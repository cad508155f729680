"""What a cluster tells its clients of itself: who leads, who is in sync, who is the controller."""

from collections.abc import Callable, Sequence

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata, NewTopic, PartitionMetadata

from tests.support.process import wait_for

from .load import IMPATIENT


class View:
    """A topic as an admin client sees it."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.admin = AdminClient({"bootstrap.servers": bootstrap, **IMPATIENT})
        self.topic = topic

    def create(self, replicas: Sequence[Sequence[int]], **configs: str) -> None:
        """Make the topic, given who holds each partition."""
        config = {name.replace("_", "."): value for name, value in configs.items()}
        new = NewTopic(self.topic, len(replicas), replica_assignment=[list(r) for r in replicas], config=config)
        wait_for(f"topic {self.topic}", lambda: self._is_created(new))
        self.wait_until_in_sync()

    def _is_created(self, new: NewTopic) -> bool:
        """Asks again where the controller has changed meanwhile, as it may on a machine that is busy."""
        try:
            self.admin.create_topics([new])[self.topic].result(60)
        except KafkaException as error:
            code = error.args[0].code()
            if code not in (KafkaError.TOPIC_ALREADY_EXISTS, KafkaError.REQUEST_TIMED_OUT):
                raise
            return bool(code == KafkaError.TOPIC_ALREADY_EXISTS)
        return True

    def known_leader(self, partition: int = 0) -> int:
        """Who leads, once somebody does."""
        return _known("a leader", lambda: self.leader(partition))

    def known_controller(self) -> int:
        """Who the controller is, once that is known."""
        return _known("a controller", self.controller)

    def leader(self, partition: int = 0) -> int:
        """Who leads; -1 while nobody does, or nobody answers."""
        found = self._partitions().get(partition)
        return -1 if found is None else int(found.leader)

    def isr(self, partition: int = 0) -> set[int]:
        """Who is in sync; empty while nobody answers."""
        found = self._partitions().get(partition)
        return set() if found is None else set(found.isrs)

    def controller(self) -> int:
        """Who the controller is; -1 where that is not known."""
        cluster = self._cluster()
        return -1 if cluster is None else int(cluster.controller_id)

    def wait_until_in_sync(self) -> None:
        """Returns when every partition has a leader and all its replicas in the ISR."""

        def holds() -> bool:
            partitions = self._partitions().values()
            return bool(partitions) and all(set(p.isrs) == set(p.replicas) and p.leader >= 0 for p in partitions)

        wait_for("every replica in sync", holds)

    def wait_for_other_leader(self, than: int, partition: int = 0) -> int:
        """Who leads once it is not that one any more."""
        return _known("another leader", lambda: self.leader(partition), than)

    def _cluster(self) -> ClusterMetadata | None:
        """All topics: to ask for one makes it, with as many replicas as the broker likes, where it is not there yet."""
        try:
            return self.admin.list_topics(timeout=30)
        except KafkaException:
            return None

    def _partitions(self) -> dict[int, PartitionMetadata]:
        cluster = self._cluster()
        found = None if cluster is None else cluster.topics.get(self.topic)
        return {} if found is None else dict(found.partitions)


def _known(what: str, look: Callable[[], int], than: int = -1) -> int:
    """The first broker seen that is not `than`; one that was seen may be none a moment later."""
    seen = [-1]

    def is_known() -> bool:
        seen.append(look())
        return seen[-1] not in (than, -1)

    wait_for(what, is_known)
    return seen[-1]
