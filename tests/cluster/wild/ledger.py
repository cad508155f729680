"""What the world of a wild run knows and its brokers do not: whose copy of a partition was really destroyed, and when.

A copy is destroyed when a machine loses power with bytes of the log that were not on stable storage (of a topic that
does not sync before it acknowledges, or once did not), when its directory is removed, or when its bytes are changed.
It is whole again once its broker has left the ISR and come back to it. When all that the cluster counts on (ISR, ELR)
is destroyed at the same time, nothing promises that acknowledged records survive: only that is noted as a loss.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from uuid import UUID

from headrace.cluster.image import PartitionState, Topic
from headrace.cluster.lineage import MARKS
from headrace.cluster.topics import TOPICS, decode_topics
from headrace.storage.checkpoints import PARTITION_METADATA, decode_partition_metadata
from headrace.testing.cluster import Machine, SimulatedCluster
from headrace.testing.tree import TreeSnapshot
from tests.support.checker.history import History

OFFSETS = "__consumer_offsets"
TRANSACTIONS = "__transaction_state"
SHARE_STATE = "__share_group_state"
INTERNAL = (OFFSETS, TRANSACTIONS, SHARE_STATE)
Place = tuple[UUID, int]


class Ledger:
    """Follows the store's states and the disks of all machines."""

    def __init__(self, cluster: SimulatedCluster, history: History, *, is_durable: Callable[[Topic], bool]) -> None:
        self._cluster = cluster
        self._history = history
        self._is_durable = is_durable
        self._topics: dict[UUID, Topic] = {}
        self._destroyed: dict[Place, set[int]] = defaultdict(set)
        self._left: dict[Place, set[int]] = defaultdict(set)
        """Of those: who has left ISR and ELR since."""
        self.lost: set[Place] = set()
        """Partitions of which everything that counts was destroyed."""
        self._forgotten: set[str] = set()
        """Names of topics that the store has forgotten."""
        self._set_back: set[Place] = set()
        """Partitions whose state is an older one: until one is elected, who led goes by the state that is no more."""
        self._rotten: list[tuple[Machine, str, int, bytes]] = []
        """Where bytes are wrong, and which ones."""
        self._once_unsynced: set[UUID] = set()
        """Topics whose settings have let records be acknowledged before they were synced."""
        self.isr_changes = 0
        cluster.ensemble.tree.changed = self._changed

    def _changed(self, keys: Iterable[str]) -> None:
        if not any(key.startswith(TOPICS) for key in keys):
            return
        before, self._topics = self._topics, {topic.id: topic for topic in self._cluster.topics().values()}
        self._once_unsynced |= {topic.id for topic in self._topics.values() if not self._is_durable(topic)}
        for topic in self._topics.values():
            old = before.get(topic.id)
            for index, state in enumerate(topic.partitions):
                was = old.partitions[index] if old is not None and index < len(old.partitions) else None
                if was != state:
                    self._moved(topic, index, was, state)

    def _moved(self, topic: Topic, index: int, was: PartitionState | None, state: PartitionState) -> None:
        place = (topic.id, index)
        if was is not None and was.isr != state.isr:
            self.isr_changes += 1
        if was is None or was.leader_epoch != state.leader_epoch:
            self._history.note(
                "leader",
                "info",
                topic=self._name(topic),
                partition=index,
                epoch=state.leader_epoch,
                leader=state.leader,
            )
            if place in self._set_back:
                self._set_back.discard(place)
                self._note_loss(topic, index)
        destroyed, left = self._destroyed[place], self._left[place]
        for broker in list(destroyed):
            if broker not in (*state.isr, *state.elr):
                left.add(broker)
            elif broker in left and broker in state.isr:
                left.discard(broker)
                destroyed.discard(broker)
        self._judge(place)

    def _note_loss(self, topic: Topic, index: int) -> None:
        """What the store knew of a partition is lost, and with it who held everything."""
        self._history.note("loss", "info", topic=self._name(topic), partition=index, brokers=[])

    def _name(self, topic: Topic) -> str:
        return topic.name if topic.name in INTERNAL else topic.id.hex

    def _judge(self, place: Place) -> None:
        topic = self._topics.get(place[0])
        if topic is None or place[1] >= len(topic.partitions):
            return
        state, destroyed = topic.partitions[place[1]], self._destroyed[place]
        counted = {*state.isr, *state.elr} or set(state.last_known_elr) or set(state.replicas)
        if destroyed and counted <= destroyed:
            self._history.note("loss", "info", topic=self._name(topic), partition=place[1], brokers=sorted(destroyed))
            self.lost.add(place)
            destroyed.clear()
            self._left[place].clear()

    def _destroy(self, place: Place, broker: int) -> None:
        self._destroyed[place].add(broker)
        self._left[place].discard(broker)

    def destroyed(self, topic: UUID, partition: int) -> set[int]:
        """Whose copies are not whole now."""
        return set(self._destroyed[topic, partition])

    def has_lost(self, name: str) -> bool:
        """Whether everything that counts of a partition of a topic was ever destroyed, or the store forgot it."""
        if name in self._forgotten:
            return True
        return any(self._topics[topic].name == name for topic, _ in self.lost if topic in self._topics)

    # What happens to disks

    def lose_power(self, machines: Iterable[Machine]) -> None:
        """All of them at once."""
        hit: list[Place] = []
        for machine in machines:
            before = _logs(machine)
            machine.lose_power()
            after = _logs(machine)
            for path, (place, files) in before.items():
                topic = self._topics.get(place[0])
                if topic is not None and topic.id in self._once_unsynced and _is_shorter(files, after.get(path)):
                    self._destroy(place, machine.id)
                    hit.append(place)
        for place in hit:
            self._judge(place)

    def lose_directory(self, machine: Machine, path: str) -> None:
        """A partition's directory is gone, for good."""
        place = _logs(machine)[path][0]
        machine.disk.lose(path)
        self._destroy(place, machine.id)
        self._judge(place)

    def lose_disk(self, machine: Machine) -> None:
        """An empty disk takes the place of the old one."""
        places = [place for place, _ in _logs(machine).values()]
        for name in machine.disk.listdir("/data"):
            machine.disk.lose(f"/data/{name}")
        for place in places:
            self._destroy(place, machine.id)
        for place in places:
            self._judge(place)

    def damage(self, machine: Machine, path: str, position: int, data: bytes) -> None:
        """Bytes of a log file are not what they were."""
        place = _logs(machine)[path.rpartition("/")[0]][0]
        machine.disk.damage(path, position, data)
        self._rotten.append((machine, path, position, data))
        self._destroy(place, machine.id)
        self._judge(place)

    def replicated(self, machine: Machine) -> list[str]:
        """Directories of a machine whose partitions have other replicas, too."""
        found = ((path, place) for path, (place, _) in _logs(machine).items())
        return sorted(path for path, place in found if self._replica_count(place) > 1)

    def _replica_count(self, place: Place) -> int:
        topic = self._topics.get(place[0])
        return len(topic.partitions[place[1]].replicas) if topic and place[1] < len(topic.partitions) else 0

    def rotten(self, machine: Machine) -> list[str]:
        """Directories of a machine whose log files still hold wrong bytes."""
        disk = machine.disk
        return sorted(
            {
                path.rpartition("/")[0]
                for owner, path, position, data in self._rotten
                if owner is machine and disk.exists(path) and disk.content(path)[position : position + 1] == data
            }
        )

    # What happens to the store

    def set_back(self, snapshot: TreeSnapshot) -> bool:
        """The store is restored from a backup: states that have changed since are not what the brokers go by.

        Not where a topic was deleted since the backup: its logs are gone. Nor where no broker has left a mark since,
        which they do every minute: nobody could notice. Whether it was done.
        """
        if snapshot.entries(MARKS) == self._cluster.ensemble.tree.list(MARKS):
            return False
        before = self._topics
        changed: set[Place] = set()
        then = {topic.id: topic for topic in decode_topics(snapshot.entries(TOPICS))}
        if not then.keys() <= before.keys():
            return False
        for topic_id, topic in before.items():
            if topic_id not in then:
                self._forget(topic)
                continue
            for index, state in enumerate(topic.partitions):
                old = then[topic_id].partitions
                if index >= len(old) or old[index] != state:
                    changed.add((topic_id, index))
                    self._note_loss(topic, index)
        self.lost |= changed
        self._cluster.ensemble.set_back(snapshot)
        self._set_back |= changed
        return True

    def _forget(self, topic: Topic) -> None:
        """Its logs are set aside; the brokers' own topics are made anew, and are empty."""
        self._forgotten.add(topic.name)
        if topic.name in INTERNAL:
            for index in range(len(topic.partitions)):
                self._note_loss(topic, index)
        else:
            self._history.invoke("delete_topic", topic=topic.id.hex)


def _logs(machine: Machine) -> dict[str, tuple[Place, dict[str, bytes]]]:
    """By directory: whose it is, and the bytes of its log files."""
    disk = machine.disk
    found: dict[str, tuple[Place, dict[str, bytes]]] = {}
    for path in disk.paths("/data"):
        directory, _, name = path.rpartition("/")
        if name == PARTITION_METADATA and (topic_id := decode_partition_metadata(disk.content(path))) is not None:
            number = directory.rpartition("-")[2]
            if number.isdigit():
                files = {each: disk.content(each) for each in disk.paths(directory) if each.endswith(".log")}
                found[directory] = ((topic_id, int(number)), files)
    return found


def _is_shorter(before: dict[str, bytes], after: tuple[Place, dict[str, bytes]] | None) -> bool:
    if after is None:
        return any(before.values())
    return any(data and not after[1].get(path, b"").startswith(data) for path, data in before.items())
