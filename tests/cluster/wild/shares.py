"""Members of a share group of a wild run: they acquire records, and accept, release, reject and renew them; or say
nothing, come too late, or die. One that drains accepts everything, until nothing is left.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from headrace.net.address import Address
from headrace.protocol.api import ApiKey
from headrace.protocol.batch import HEADER_SIZE, read_header
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.records import decode_records
from tests.support.checker.history import Operation
from tests.support.simulation.clients import Failed

from .clients import AGAIN, Client, Scene
from .ledger import SHARE_STATE
from .operator import LETTERS, SHARERS, STEADY, TARGET
from .transacting import coordinator

HEARTBEAT_SECONDS: Final = 0.7
DRAIN_SECONDS: Final = 90.0
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
NAMES: Final = ("gap", "accept", "release", "reject", "renew")
_SAID: Final = ((ACCEPT, 0.62), (RELEASE, 0.12), (REJECT, 0.05), (RENEW, 0.06), (None, 0.05), ("late", 0.1))
"""What members make of a record, and how often. None: nothing at all."""
_DIES: Final = 0.02
"""How often a member dies after a fetch."""
_FENCED: Final = frozenset({ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id, ErrorCode.group_id_not_found})
_ENDED: Final = frozenset({ErrorCode.share_session_not_found, ErrorCode.invalid_share_session_epoch})
Place = tuple[UUID, int]


@dataclass(slots=True)
class Session:
    """A share session with one broker."""

    heard_at: float
    """When the broker has last answered."""
    epoch: int = 0
    places: set[Place] = field(default_factory=set)


class ShareMember:
    """One member; it begins anew, under another id, as often as it dies."""

    def __init__(self, scene: Scene, name: str, *, drains: bool = False) -> None:
        self.scene = scene
        self.client = Client(scene, name)
        self.rng = self.client.rng
        self.quiet_since = scene.now
        """Since when nothing was acquired, and all was read."""
        self._drains = drains
        self._name = name
        self._topics = [STEADY, *([TARGET] if TARGET in scene.share_topics else [])]
        self._epoch = 0
        self._beat_at = 0.0
        self._places: dict[Place, str] = {}
        """Assigned partitions, and the names of their topics."""
        self._sessions: dict[Address, Session] = {}
        self._said: dict[Place, dict[int, int]] = defaultdict(dict)
        """Types of acknowledgements that are to be sent, by offset."""
        self._late: list[tuple[float, Place, int]] = []
        self._lives = 0
        self._begin_life()

    def _begin_life(self) -> None:
        self._lives += 1
        self.id = UUID(int=self.rng.getrandbits(128)).hex
        self._epoch = 0
        self._places.clear()
        self._said.clear()
        self._late.clear()

    async def run(self) -> None:
        while not self.scene.is_over:
            if self.scene.is_rewinding:
                await self._stay_away()
            await self.turn()
            await self.client.rest()
        await self.leave()

    async def turn(self) -> None:
        """Heartbeat, and fetch from every leader."""
        for address in [each for each in self._sessions if not self.client.is_connected(each)]:
            self._lose(address)
        try:
            if self.scene.now >= self._beat_at:
                await self._beat()
                self._beat_at = self.scene.now + HEARTBEAT_SECONDS
            await self._fetch_all()
        except (Failed, OSError, TimeoutError, CodedError):
            for topic in self._topics:
                self.client.mistrust(topic)
            self.quiet_since = self.scene.now
            await self.client.pause()

    async def _stay_away(self) -> None:
        """Leave the group, until an operator is done with it."""
        epoch, member = self._epoch, self.id
        self._die()
        if epoch:
            with suppress(Failed, OSError, TimeoutError):
                await self._heartbeat(member, -1, None)
        while self.scene.is_rewinding and not self.scene.is_over:
            await self.client.pause()

    async def leave(self) -> None:
        """Say nothing more."""
        self._die()
        self.client.close()

    # Membership

    async def _beat(self) -> None:
        answer = await self._heartbeat(self.id, self._epoch, None if self._epoch else self._topics)
        code = ErrorCode(answer.error_code)
        if code in _FENCED:
            self._epoch = 0
        if code is not ErrorCode.none:
            raise Failed(code)
        self._epoch = answer.member_epoch
        if answer.assignment is not None:
            names = {(await self.client.known(topic)).id: topic for topic in self._topics}
            self._places = {
                (each.topic_id, index): names[each.topic_id]
                for each in answer.assignment.topic_partitions
                for index in each.partitions
                if each.topic_id in names
            }
            if self._drains and len(self._places) < sum([(await self.client.known(t)).count for t in self._topics]):
                self.quiet_since = self.scene.now  # others are members still
        elif self._drains and not self._places:
            self.quiet_since = self.scene.now

    async def _heartbeat(self, member: str, epoch: int, topics: Sequence[str] | None) -> Any:
        values = {
            "group_id": SHARERS,
            "member_id": member,
            "member_epoch": epoch,
            "rack_id": None,
            "subscribed_topic_names": topics,
        }
        address = await coordinator(self.client, SHARERS)
        return await self.client.ask(address, ApiKey.SHARE_GROUP_HEARTBEAT, 1, values)

    # Sessions

    async def _fetch_all(self) -> None:
        self._say_late()
        by_leader: dict[Address, list[Place]] = {}
        for (topic_id, index), topic in list(self._places.items()):
            leader = await self.client.leader_of(topic, index, topic_id)
            by_leader.setdefault(leader, []).append((topic_id, index))
        for address, places in by_leader.items():
            await self._visit(address, places)
            if not self._drains and self.rng.random() < _DIES:
                self._die()
                return

    async def _visit(self, address: Address, places: Sequence[Place]) -> None:
        session = self._sessions.get(address)
        if session is not None and session.epoch and self.rng.random() < 0.4:
            await self._acknowledge(address, session, places)
        await self._fetch(address, places)

    async def _ask(self, address: Address, session: Session, api: ApiKey, values: dict[str, Any]) -> Any:
        """An answer of a session that goes on; what it ends with otherwise releases what the member has."""
        try:
            answer = await self.client.ask(address, api, 2, values)
        except OSError:
            self._lose(address)
            raise
        code = ErrorCode(answer.error_code)
        if code is not ErrorCode.none:
            self._lose(address)
            raise Failed(code)
        session.epoch += 1
        session.heard_at = self.scene.now
        return answer

    def _lose(self, address: Address) -> None:
        """What was acquired there may be others' since the broker was last heard."""
        session = self._sessions.pop(address, None)
        if session is not None:
            self.scene.history.note("left", "info", group=SHARERS, member=self.id, since=session.heard_at)

    def _die(self) -> None:
        for address in list(self._sessions):
            self.client.drop(address)
            self._lose(address)
        self._begin_life()

    # Acknowledgements

    def _taken(self, places: Iterable[Place], *, renews: bool) -> dict[Place, list[tuple[int, int]]]:
        """What is to be said of partitions now; renewals go alone."""
        found = {}
        for place in places:
            mine = sorted((offset, kind) for offset, kind in self._said[place].items() if (kind == RENEW) == renews)
            if mine:
                for offset, _ in mine:
                    del self._said[place][offset]
                found[place] = mine
        return found

    def _invoked(self, said: dict[Place, list[tuple[int, int]]]) -> dict[Place, list[Operation]]:
        operations: dict[Place, list[Operation]] = {}
        for place, acks in said.items():
            kinds: dict[int, list[int]] = {}
            for offset, kind in acks:
                kinds.setdefault(kind, []).append(offset)
            operations[place] = [
                self.scene.history.invoke(
                    "acknowledge",
                    group=SHARERS,
                    member=self.id,
                    topic=place[0].hex,
                    partition=place[1],
                    offsets=offsets,
                    kind=NAMES[kind],
                )
                for kind, offsets in kinds.items()
            ]
        return operations

    def _settle(self, operations: Sequence[Operation], code: ErrorCode) -> None:
        for operation in operations:
            if code is ErrorCode.none:
                operation.ok()
            elif code in (ErrorCode.invalid_record_state, ErrorCode.invalid_request):
                operation.fail(error=code.name)
            else:
                operation.info(error=code.name)

    def _asked(
        self, session: Session, places: Iterable[Place], said: dict[Place, list[tuple[int, int]]]
    ) -> dict[str, Any]:
        topics: dict[UUID, list[dict[str, Any]]] = {}
        for topic_id, index in places:
            batches = [
                {"first_offset": first, "last_offset": last, "acknowledge_types": (kind,)}
                for first, last, kind in _runs(said.get((topic_id, index), ()))
            ]
            topics.setdefault(topic_id, []).append({"partition_index": index, "acknowledgement_batches": batches})
        return {
            "group_id": SHARERS,
            "member_id": self.id,
            "share_session_epoch": session.epoch,
            "topics": [{"topic_id": topic_id, "partitions": partitions} for topic_id, partitions in topics.items()],
        }

    async def _acknowledge(self, address: Address, session: Session, places: Sequence[Place]) -> None:
        for renews in (True, False):
            said = self._taken(places, renews=renews)
            if not said:
                continue
            operations = self._invoked(said)
            values = {**self._asked(session, said, said), "is_renew_ack": renews}
            try:
                answer = await self._ask(address, session, ApiKey.SHARE_ACKNOWLEDGE, values)
            except (OSError, Failed):
                self._give_up(operations)
                raise
            for topic in answer.responses:
                for found in topic.partitions:
                    self._settle(
                        operations.pop((topic.topic_id, found.partition_index), ()), ErrorCode(found.error_code)
                    )
            self._give_up(operations)

    @staticmethod
    def _give_up(operations: dict[Place, list[Operation]]) -> None:
        for each in operations.values():
            for operation in each:
                operation.info()

    # Records

    async def _fetch(self, address: Address, places: Sequence[Place]) -> None:
        session = self._sessions.get(address)
        if session is None:
            session = self._sessions[address] = Session(self.scene.now)
        said = self._taken(places, renews=False) if session.epoch else {}
        operations = self._invoked(said)
        added = [place for place in places if place not in session.places or place in said]
        forgotten: dict[UUID, list[int]] = {}
        for topic_id, index in session.places - set(places):
            forgotten.setdefault(topic_id, []).append(index)
        values = {
            **self._asked(session, added, said),
            "max_wait": 200 if self._drains else self.rng.choice((0, 200, 1000)),
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 500 if self._drains else self.rng.choice((1, 5, 50, 500)),
            "batch_size": self.rng.choice((1, 5, 500)),
            "share_acquire_mode": self.rng.choice((0, 1)),
            "is_renew_ack": False,
            "forgotten_topics_data": [
                {"topic_id": topic_id, "partitions": partitions} for topic_id, partitions in forgotten.items()
            ],
        }
        since = self.scene.now
        try:
            answer = await self._ask(address, session, ApiKey.SHARE_FETCH, values)
        except (OSError, Failed):
            self._give_up(operations)
            raise
        session.places = set(places)
        lock = answer.acquisition_lock_timeout.total_seconds()
        failed: list[ErrorCode] = []
        for topic in answer.responses:
            for found in topic.partitions:
                place = (topic.topic_id, found.partition_index)
                self._settle(operations.pop(place, ()), ErrorCode(found.acknowledge_error_code))
                if found.error_code != ErrorCode.none:
                    failed.append(ErrorCode(found.error_code))
                elif found.acquired_records:
                    self._take(place, found, since, lock)
        for each in operations.values():  # a partition that is not told of is well
            self._settle(each, ErrorCode.none)
        if failed:
            if any(code not in AGAIN for code in failed):
                self.quiet_since = self.scene.now
            raise Failed(failed[0])

    def _take(self, place: Place, found: Any, since: float, lock: float) -> None:
        self.quiet_since = self.scene.now
        records = dict(_records(bytes(found.records or b"")))
        ranges = [(r.first_offset, r.last_offset, r.delivery_count) for r in found.acquired_records]
        mine = [(o, records[o]) for first, last, _ in ranges for o in range(first, last + 1) if o in records]
        self.scene.history.note(
            "acquired",
            "ok",
            group=SHARERS,
            member=self.id,
            topic=place[0].hex,
            partition=place[1],
            since=since,
            records=[list(each) for each in mine],
            ranges=[[first, last] for first, last, _ in ranges],
            lock=lock,
        )
        for first, last, _ in ranges:
            self.scene.history.saw(
                f"{SHARERS}-{self.id[:8]}",
                place[0].hex,
                place[1],
                first,
                [(offset, value, None) for offset, value in mine if first <= offset <= last],
                next_offset=last + 1,
                committed_only=self.scene.shares_committed,
                since=since,
            )
            for offset in range(first, last + 1):
                self._decide(place, offset, lock, is_there=offset in records)

    def _decide(self, place: Place, offset: int, lock: float, *, is_there: bool) -> None:
        kinds, weights = zip(*_SAID, strict=True)
        kind: Any = GAP if not is_there else ACCEPT if self._drains else self.rng.choices(kinds, weights)[0]
        if kind == "late":
            self._late.append((self.scene.now + self.rng.uniform(0, 1.5) * lock, place, offset))
        elif kind is not None:
            self._said[place][offset] = kind
            if kind == RENEW:
                self._late.append((self.scene.now + self.rng.uniform(0.5, 1.5) * lock, place, offset))

    def _say_late(self) -> None:
        due = [each for each in self._late if each[0] <= self.scene.now]
        self._late = [each for each in self._late if each[0] > self.scene.now]
        for _, place, offset in due:
            self._said[place][offset] = ACCEPT


def _runs(acks: Iterable[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """First offset, last offset and type, in the order of offsets, each offset once."""
    runs: list[tuple[int, int, int]] = []
    for offset, kind in acks:
        if runs and runs[-1][1] == offset - 1 and runs[-1][2] == kind:
            runs[-1] = (runs[-1][0], offset, kind)
        else:
            runs.append((offset, offset, kind))
    return runs


def _records(data: bytes) -> Iterable[tuple[int, str]]:
    while len(data) >= HEADER_SIZE and len(data) >= (size := read_header(data).size):
        batch, data = data[:size], data[size:]
        if not read_header(batch).is_control:
            yield from ((record.offset, (record.value or b"").decode()) for record in decode_records(batch))


async def drain(scene: Scene, lock_seconds: float) -> None:
    """Accept everything that nobody is done with, and have the dead letters written of what was given up."""
    member = ShareMember(scene, "drainer", drains=True)
    member.quiet_since = scene.now
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            while scene.now - member.quiet_since < 2 * lock_seconds + 12 or _letters_due(scene):
                await member.turn()
                await asyncio.sleep(0.1)
    except TimeoutError:
        scene.history.complain(f"not served: a share group cannot be drained, {_letters_due(scene)} letters wait")
    known = await member.client.refresh(LETTERS)
    scene.history.note("drained", "ok", group=SHARERS, letters=known.id.hex)
    await member.leave()


def _letters_due(scene: Scene) -> int:
    return sum(machine.broker._shares.letters_due for machine in scene.cluster)


async def read_letters(scene: Scene) -> None:
    """Note the dead letters that are there in the end."""
    client = Client(scene, "letter-reader")
    known = await client.known(LETTERS)
    names = {topic: (await client.known(topic)).id.hex for topic in scene.share_topics}
    for index in range(known.count):
        offset, end = 0, await client.list_offset(LETTERS, index, -1)
        while offset < end:
            leader = await client.leader_of(LETTERS, index)
            found = await client.fetch_from(leader, known.id, index, offset, committed_only=False)
            if found.error_code != ErrorCode.none:
                raise Failed(ErrorCode(found.error_code))
            data = bytes(found.records or b"")
            while len(data) >= HEADER_SIZE and len(data) >= (size := read_header(data).size):
                batch, data = data[:size], data[size:]
                offset = read_header(batch).last_offset + 1
                for record in decode_records(batch):
                    about = {name: (text or b"").decode() for name, text in record.headers}
                    scene.history.note(
                        "letter",
                        "ok",
                        group=about["__dlq.errors.group"],
                        topic=names[about["__dlq.errors.topic"]],
                        partition=int(about["__dlq.errors.partition"]),
                        offset=int(about["__dlq.errors.offset"]),
                        count=int(about["__dlq.errors.delivery.count"]),
                        value=(record.value or b"").decode(),
                    )
    client.close()


__all__ = ["SHARE_STATE", "ShareMember", "drain", "read_letters"]
