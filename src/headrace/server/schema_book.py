"""What this broker knows of registered schemas, for topics with `headrace.schema.validation`.

A record passes if its value (or key) begins with a zero byte and the id, in four bytes, of a schema that is registered
for the subject `topic-value` (or `topic-key`); null passes. The broker learns ids by replaying the registry's topic,
from its own log where it leads it, else from the leader. It reads only when it has to: when an id is not known, and
now and then while checks are asked for.

An id that is not known may have been registered a moment ago. So the first to bring one is told to try again, the topic
is read to its end, and only who brings it then is refused.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from struct import Struct
from typing import Final, NamedTuple

import structlog

from headrace.net.clock import Clock
from headrace.net.peers import PeerUnreachable
from headrace.protocol.errors import CodedError, ErrorCode, RecordsRefused
from headrace.protocol.records import Record, decode_records
from headrace.schema_log.names import DEFAULT_CONTEXT
from headrace.schema_log.records import NewerFormatError, decode
from headrace.schema_log.state import RegistryState

FRESH_SECONDS: Final = 5.0
MOST_AWAITED: Final = 1000
_FRAME: Final = Struct(">bi")

log = structlog.get_logger(__name__)


class Slice(NamedTuple):
    """Records of the registry's topic, and the offset up to which it is committed."""

    records: Sequence[Record]
    next_offset: int
    high_watermark: int


Unknown = tuple[str, int]
"""A subject, and an id that is not known to be of it."""

Named = Mapping[tuple[str, int | None], Sequence[int]]
"""The records of a batch, by index, under a field and the schema id that it begins with; None where it has no id."""

Read = Callable[[int], Awaitable[Slice]]
"""The registry's topic from an offset on; CodedError or PeerUnreachable when it cannot be read."""


class SchemaBook:
    """Checks batches against what is registered; `follow` keeps it up with the registry."""

    def __init__(self, read: Read, clock: Clock) -> None:
        self._read = read
        self._clock = clock
        self._state = RegistryState()
        self._position = 0
        self._rounds = 0
        """How often the topic was read to its end."""
        self._read_at = float("-inf")
        self._awaited: dict[Unknown, int] = {}
        """Unknown ids that somebody brought, and how many rounds were done when they were first seen."""
        self._is_wanted = asyncio.Event()
        self._is_reading = False

    def check(self, topic: str, named: Named) -> None:
        """Raises RecordsRefused for records without a registered schema, or an error to be tried again after."""
        if self._clock.monotonic() - self._read_at > FRESH_SECONDS:
            self._is_wanted.set()
        refused: list[tuple[int, str]] = []
        unknown: set[Unknown] = set()
        for (field, schema_id), indexes in named.items():
            reason = self._objection(f"{topic}-{field}", schema_id, field, unknown)
            if reason is not None:
                refused += [(index, reason) for index in indexes]
        if refused:
            self._require_certainty(unknown)
            refused.sort()
            message = f"{len(refused)} record(s) without a schema registered for the topic: {refused[0][1]}"
            raise RecordsRefused(ErrorCode.invalid_record, message, tuple(refused))

    async def follow(self) -> None:
        """Read the registry's topic on request; runs until cancelled."""
        while True:
            await self._is_wanted.wait()
            self._is_wanted.clear()
            self._is_reading = True
            try:
                await self._catch_up()
            except (CodedError, PeerUnreachable) as error:
                log.warning("the registry's topic cannot be read", reason=str(error))
                await asyncio.sleep(1.0)
            except NewerFormatError as error:
                log.error("schemas cannot be checked by this version", reason=str(error))
                return
            except Exception:
                log.exception("reading the registry's topic failed")
                await asyncio.sleep(1.0)
            finally:
                self._is_reading = False

    async def _catch_up(self) -> None:
        while True:
            page = await self._read(self._position)
            if page.high_watermark < self._position:
                self._begin_again()
                continue
            for record in page.records:
                self._state.apply(record.offset, decode(record.value))
            self._position = max(self._position, page.next_offset)
            if self._position >= page.high_watermark:
                break
        self._rounds += 1
        self._read_at = self._clock.monotonic()

    def _begin_again(self) -> None:
        """The topic is shorter than what was read of it: it is another one."""
        self._state = RegistryState()
        self._position = 0

    def _objection(self, subject: str, schema_id: int | None, field: str, unknown: set[Unknown]) -> str | None:
        if schema_id is None:
            return f"the {field} does not begin with a schema id"
        if self._is_registered(subject, schema_id):
            return None
        unknown.add((subject, schema_id))
        return f"schema {schema_id} is not registered for subject {subject}"

    def _is_registered(self, subject: str, schema_id: int) -> bool:
        uses = self._state.context(DEFAULT_CONTEXT).uses.get(schema_id, ())
        return any(place == subject for place, _ in uses)

    def _require_certainty(self, unknown: set[Unknown]) -> None:
        """Returns if the topic was read to its end since somebody first brought each of these; else it is read now."""
        never = 1 << 62
        if all(self._rounds > self._awaited.get(each, never) for each in unknown):
            for each in unknown:
                del self._awaited[each]
            return
        for each in unknown:
            # A round that is under way may have passed the end before the schema came: it does not count.
            self._awaited.setdefault(each, self._rounds + self._is_reading)
        while len(self._awaited) > MOST_AWAITED:
            del self._awaited[next(iter(self._awaited))]
        self._is_wanted.set()
        subject, schema_id = min(unknown)
        message = f"schema {schema_id} of subject {subject} is not known here yet; try again"
        raise CodedError(ErrorCode.request_timed_out, message)


def named_schemas(fields: Iterable[str], batch: memoryview) -> Named:
    """What `SchemaBook.check` has to know of a batch: some microseconds for each record. Null is left out."""
    indexes: dict[tuple[str, int | None], list[int]] = defaultdict(list)
    for index, record in enumerate(decode_records(batch)):
        for field in fields:
            data = record.key if field == "key" else record.value
            if data is not None:
                indexes[field, _schema_id(data)].append(index)
    return indexes


def _schema_id(data: bytes) -> int | None:
    if len(data) < _FRAME.size or data[0] != 0:
        return None
    schema_id: int = _FRAME.unpack_from(data)[1]
    return schema_id
