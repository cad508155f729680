"""Backups of the metadata: one moment, whole or refused, restored so that brokers see that it is old."""

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable
from random import Random
from uuid import UUID

import pytest

from headrace.cluster import backup as backups
from headrace.cluster.backup import Backup, BackupError, RestoreTarget, StoreKind
from headrace.cluster.feature_level import LEVEL
from headrace.cluster.identity import CLUSTER_ID
from headrace.cluster.image import NO_LEADER, PartitionState, Topic
from headrace.cluster.lineage import LINEAGE, load_lineage, mark_key
from headrace.cluster.producer_ids import KEY as PRODUCER_IDS
from headrace.cluster.registration import ACCOUNTED, CONTROLLER, CONTROLLER_EPOCH, registration_key
from headrace.cluster.store import Create, Delete, Entries, MetadataStore, Operation, Put, Versioned
from headrace.cluster.topics import TOPICS, creation, decode_topics
from headrace.testing.store import SimulatedEnsemble

ID = "vPeOCWypqUOSepEvx0cbog"
STATE = PartitionState(replicas=(1, 2, 3), isr=(1, 2), leader=1, leader_epoch=7)
ORDERS = Topic(name="orders", id=UUID(int=5), partitions=(STATE,) * 2500, configs={"retention.ms": "1"})
KEPT: list[Operation] = [
    Create(CLUSTER_ID, ID.encode()),
    Create(CONTROLLER_EPOCH, b"12"),
    Create(PRODUCER_IDS, b"4000"),
    Create("/config/brokers/1", b'{"x":"1"}'),
    Create("/not/text", b"\xff\x00"),
    *creation(ORDERS)[0],
]
LIVE: list[Operation] = [
    Create(registration_key(1), b"{}", ephemeral=True),
    Create(CONTROLLER, b"{}", ephemeral=True),
    Create(mark_key(1), b"3 abc"),
    Create(ACCOUNTED, b"{}"),
]
Work = Callable[[MetadataStore], Awaitable[None]]


def on_store(work: Work) -> None:
    async def main() -> None:
        await work(SimulatedEnsemble().session())

    asyncio.run(main())


async def taken_from(store: MetadataStore) -> Backup:
    return await backups.take(store, StoreKind.ZOOKEEPER, now_ms=1_000, version="0.1.0")


def made(kind: StoreKind = StoreKind.ZOOKEEPER, level: int = 1) -> Backup:
    entries = [(one.key, Versioned(one.value, 0, 1)) for one in KEPT if isinstance(one, Create)]
    return Backup(cluster_id=ID, level=level, store=kind, taken_ms=1, version="0", entries=sorted(entries))


def test_a_backup_has_all_but_what_lives_with_a_broker() -> None:
    async def work(store: MetadataStore) -> None:
        await store.commit([*KEPT, *LIVE])
        found = await taken_from(store)
        assert [key for key, _ in found.entries] == sorted(one.key for one in KEPT)
        assert (found.cluster_id, found.level) == (ID, 1)
        assert found.topics == [creation(ORDERS)[1]]

    on_store(work)


class Moving:
    """A store that changes during its first readings."""

    def __init__(self, changes: int) -> None:
        self.left = changes
        self.readings = 0

    async def list(self, prefix: str) -> Entries:
        assert prefix == "/"
        self.readings += 1
        self.left = max(self.left - 1, 0)
        return [(CLUSTER_ID, Versioned(ID.encode(), 0)), ("/x", Versioned(b"", 100 - self.left))]


def test_the_store_is_read_until_nothing_changes_between_two_readings() -> None:
    store = Moving(changes=4)
    found = asyncio.run(taken_from(store))  # type: ignore[arg-type]
    assert dict(found.entries)["/x"].version == 100
    assert store.readings == 5


def test_a_store_that_never_stands_still_is_told_of() -> None:
    with pytest.raises(BackupError, match="changed during each of"):
        asyncio.run(taken_from(Moving(changes=1000)))  # type: ignore[arg-type]


def test_a_store_without_a_cluster_has_no_backup() -> None:
    async def work(store: MetadataStore) -> None:
        with pytest.raises(BackupError, match="no cluster"):
            await taken_from(store)

    on_store(work)


def test_a_file_gives_the_backup_that_was_written() -> None:
    assert backups.decode(backups.encode(made())) == made()


def test_a_file_can_be_read_without_us() -> None:
    lines = [json.loads(line) for line in gzip.decompress(backups.encode(made())).splitlines()]
    assert lines[0]["cluster_id"] == ID
    assert {line["key"] for line in lines[1:-1]} == {key for key, _ in made().entries}
    assert lines[-1]["entries"] == len(made().entries)


def damaged_files() -> list[bytes]:
    good = backups.encode(made())
    text = gzip.decompress(good)
    cut = text[: text.rindex(b"\n", 0, -1) + 1]
    return [
        b"",
        b"no backup at all",
        good[:-20],
        good[: len(good) // 2] + b"\0" + good[len(good) // 2 + 1 :],
        gzip.compress(b"hello\n"),
        gzip.compress(b'{"a":1}\n'),
        gzip.compress(cut),
        gzip.compress(text.replace(b"retention.ms", b"retention.MS")),
        gzip.compress(text.replace(b'"format":1', b'"format":9')),
        gzip.compress(b"\n".join(text.split(b"\n")[:1] + text.split(b"\n")[2:])),
    ]


@pytest.mark.parametrize("number", range(10))
def test_a_damaged_file_is_refused(number: int) -> None:
    with pytest.raises(BackupError):
        backups.decode(damaged_files()[number])


def entries(**values: str) -> Entries:
    return [(f"/{name.replace('__', '/')}", Versioned(value.encode(), 0)) for name, value in values.items()]


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (entries(cluster__id="another"), "of cluster another"),
        (entries(cluster__id=ID, brokers__ids__2="{}"), "broker 2 is registered"),
        (entries(cluster__id=ID, controller="{}"), "session"),
        (entries(solr="x"), "/solr"),
    ],
)
@pytest.mark.parametrize("force", [False, True])
def test_a_store_that_is_alive_or_somebody_elses_is_never_replaced(target: Entries, reason: str, force: bool) -> None:
    with pytest.raises(BackupError, match=reason):
        backups.refuse(made(), StoreKind.ZOOKEEPER, RestoreTarget(entries=target), newest_level=1, force=force)


def test_a_store_that_is_not_empty_is_replaced_only_with_force() -> None:
    target = RestoreTarget(entries=entries(cluster__id=ID, topics__orders="{}"))
    with pytest.raises(BackupError, match="--force"):
        backups.refuse(made(), StoreKind.ZOOKEEPER, target, newest_level=1, force=False)
    backups.refuse(made(), StoreKind.ZOOKEEPER, target, newest_level=1, force=True)


def test_a_backup_of_a_later_level_or_of_another_kind_of_store_is_refused() -> None:
    empty = RestoreTarget(entries=[])
    with pytest.raises(BackupError, match="level is 2"):
        backups.refuse(made(level=2), StoreKind.ZOOKEEPER, empty, newest_level=1, force=False)
    with pytest.raises(BackupError, match="--data"):
        backups.refuse(made(StoreKind.SQLITE), StoreKind.ZOOKEEPER, empty, newest_level=1, force=False)


async def restored(store: MetadataStore, backup: Backup) -> None:
    await backups.restore(store, backups.restoration(backup, Random(1)), await backups.look(store))


def test_a_restored_store_lets_nobody_lead_before_logs_were_compared() -> None:
    async def work(store: MetadataStore) -> None:
        await restored(store, made())
        (topic,) = decode_topics(await store.list(TOPICS))
        assert (topic.name, topic.id, topic.configs) == (ORDERS.name, ORDERS.id, ORDERS.configs)
        assert len(topic.partitions) == 2500
        for state in topic.partitions:
            assert (state.leader, state.isr, state.last_known_elr) == (NO_LEADER, (), (1, 2, 3))
            assert state.leader_epoch > STATE.leader_epoch

    on_store(work)


def test_a_restored_store_looks_set_back_and_gives_no_producer_id_twice() -> None:
    async def work(store: MetadataStore) -> None:
        await restored(store, made())
        assert await store.get(mark_key(1)) is None
        lineage = await load_lineage(store)
        assert lineage.was_set_back
        assert lineage.is_news(lineage.latest)
        following = await store.get(PRODUCER_IDS)
        assert following is not None
        assert int(following.value) > 1 << 36
        other = await store.get("/not/text")
        assert other is not None
        assert other.value == b"\xff\x00"

    on_store(work)


def test_a_store_that_was_restored_before_goes_on_with_its_lineage() -> None:
    async def work(store: MetadataStore) -> None:
        backup = made()
        backup.entries.append((LINEAGE, Versioned(b'["","a"]', 4)))
        await restored(store, backup)
        assert (await load_lineage(store)).ids[:2] == ("", "a")

    on_store(work)


def test_what_was_in_the_store_is_gone_after_a_restore_and_the_cluster_is_itself_last() -> None:
    async def work(store: MetadataStore) -> None:
        later = Topic(name="later", id=UUID(int=6), partitions=(STATE,) * 1500, configs={})
        await store.commit([*KEPT, *creation(later)[0]])
        seen: list[Operation] = []
        before = store.commit

        async def noting(operations: list[Operation]) -> None:
            seen.extend(operations)
            await before(operations)

        store.commit = noting  # type: ignore[assignment]
        await restored(store, made())
        assert [topic.name for topic in decode_topics(await store.list(TOPICS))] == ["orders"]
        assert isinstance(seen[0], Delete)
        assert isinstance(seen[-1], Create)
        assert seen[0].key == seen[-1].key == CLUSTER_ID

    on_store(work)


def test_a_store_that_changes_while_it_is_replaced_is_not_half_a_cluster() -> None:
    async def work(store: MetadataStore) -> None:
        await store.commit(KEPT)
        target = await backups.look(store)
        await store.commit([Put(CONTROLLER_EPOCH, b"13", 0)])
        with pytest.raises(BackupError, match="stop all brokers"):
            await backups.restore(store, backups.restoration(made(), Random(1)), target)

    on_store(work)


def test_the_level_of_a_cluster_is_in_its_backup() -> None:
    async def work(store: MetadataStore) -> None:
        await store.commit([*KEPT, Create(LEVEL, b"3")])
        assert (await taken_from(store)).level == 3

    on_store(work)
