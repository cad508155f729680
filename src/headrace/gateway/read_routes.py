"""GET …/messages: of one partition by offset, time or what a group has committed; of a whole topic in pages."""

import re
from datetime import UTC, datetime
from heapq import merge
from typing import Annotated, Final

from msgspec import Meta, Struct, field

from headrace.client.aio import groups
from headrace.client.aio.client import Client
from headrace.client.aio.fetching import Page, fetch, list_offsets
from headrace.client.aio.reader import Reader
from headrace.client.core.offsets import EARLIEST, LATEST
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.topic_partition import TopicPartition
from headrace.web.checking import text_meta
from headrace.web.messages import Answer, Request
from headrace.web.problem import Problem, bad_request
from headrace.web.routes import Reply, Routes

from .credentials import Clients
from .messages import Format, Message, encode, shown
from .names import Group, Partition, Topic, TopicPath, require_messages

MOST_MESSAGES: Final = 10_000
MOST_WAIT_MS: Final = 30_000
MOST_BYTES: Final = 32 << 20
READ_PROBLEMS: Final = {
    401: Reply("Credentials are missing, or the brokers do not take them."),
    403: Reply("Not allowed to read here."),
    404: Reply("There is no such topic or partition."),
    502: Reply("The brokers refused for a reason that has no status of its own."),
    503: Reply("The cluster does not answer."),
}
UNLIKE: Final = {422: Reply("A value is not of the format asked for.")}
Wait = Annotated[int, Meta(ge=0, le=MOST_WAIT_MS, description="Milliseconds to wait for the first message.")]
Many = Annotated[int, Meta(ge=1, le=MOST_MESSAGES, description="How many messages at most.")]
_TIME: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9:.]{1,15}(Z|[+-][0-9]{2}:?[0-9]{2})?)?"
_POSITIONS: Final = r"[0-9]{1,9}:[0-9]{1,18}(,[0-9]{1,9}:[0-9]{1,18}){0,9999}"
Time = Annotated[
    str,
    text_meta(
        rf"^([0-9]{{1,15}}|{_TIME})\Z",
        "a time: milliseconds since 1970, or 2026-01-31T12:00:00Z",
        "2026-01-31T12:00:00Z",
        most=40,
        description="Begin at the first message of this time or later.",
    ),
]
Start = Annotated[
    str,
    text_meta(
        r"^(earliest|latest|[0-9]{1,18})\Z",
        "an offset: a number, 'earliest' or 'latest'",
        "0",
        most=18,
        description="Where to begin: a number, `earliest` or `latest`. Left out: where the group named by "
        "X-Consumer-Group is, else `earliest`.",
    ),
]
From = Annotated[
    str,
    text_meta(
        rf"^(earliest|latest|{_TIME})\Z",
        "'earliest', 'latest' or a time as 2026-01-31T12:00:00Z",
        "earliest",
        most=40,
        description="Where the first page begins: `earliest`, `latest` or a time.",
    ),
]
Positions = Annotated[
    str,
    text_meta(
        rf"^{_POSITIONS}\Z",
        "the `next` of a page",
        "0:42,1:17",
        most=300_000,
        description="Go on after a page: what its `next` was, the next offset of each partition.",
    ),
]


class PartitionPath(Struct, frozen=True):
    """A path with a partition."""

    topic: Topic
    partition: Partition


class ReadQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """What to read of a partition."""

    offset: Start | None = None
    timestamp: Time | None = None
    limit: Many = 100
    wait_ms: Wait = 0
    max_bytes: Annotated[
        int, Meta(ge=1, le=MOST_BYTES, description="About how much to read; one message always comes.")
    ] = 1 << 20
    format: Format = "base64"


class ReadHeaders(Struct, frozen=True, rename={"group": "X-Consumer-Group"}):
    """In whose name to read."""

    group: Annotated[Group, Meta(description="Begin where this group is. Needs the right to read in it.")] | None = None


class Messages(Struct):
    """Messages of one partition."""

    messages: list[Message]
    next_offset: Annotated[int, Meta(description="Where to go on.", examples=[42])]
    high_watermark: Annotated[int, Meta(description="Where the partition ends.", examples=[42])]
    log_start_offset: Annotated[int, Meta(description="Where the partition begins.", examples=[0])]


class ReadTopicQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """What to read of a topic."""

    start: From = field(default="earliest", name="from")
    cursor: Positions | None = None
    limit: Many = 100
    wait_ms: Wait = 0
    format: Format = "base64"


class TopicMessages(Struct):
    """Messages of all partitions of a topic."""

    messages: list[Message]
    next: Annotated[str, Meta(description="The `cursor` of the next page.", examples=["0:42,1:17"])]


def read_routes(clients: Clients) -> Routes:
    """The routes that read without joining a group."""
    routes = Routes(tag="Read", about="Messages out of partitions, without joining a group.")

    @routes.get(
        "/api/v1/topics/{topic}/partitions/{partition}/messages",
        "Read messages of a partition.",
        about="`next_offset` is where to go on. With `wait_ms` an empty answer comes only after that time.",
        path=PartitionPath,
        query=ReadQuery,
        headers=ReadHeaders,
        answers={
            200: Reply("Messages, perhaps none.", Messages),
            416: Reply("There is no such offset; the answer tells which there are."),
            **UNLIKE,
            **READ_PROBLEMS,
        },
        is_hot=True,
    )
    async def read_messages(request: Request, path: PartitionPath, query: ReadQuery, headers: ReadHeaders) -> Answer:
        client = clients.of(request)
        topic, partition = path.topic, path.partition
        await require_partition(client, topic, partition)
        committed = None
        if headers.group is not None:
            committed = await _committed(client, headers.group, TopicPartition(topic, partition))
        offset = await _start(client, path, query, committed)
        place = TopicPartition(topic, partition)
        try:
            page = await fetch(client.cluster, place, offset, max_bytes=query.max_bytes, wait_ms=query.wait_ms)
        except CodedError as error:
            if error.code is not ErrorCode.offset_out_of_range:
                raise
            if committed != offset or query.offset is not None:
                raise await _out_of_range(client, topic, partition, offset) from None
            offset = (await list_offsets(client.cluster, topic, {partition: EARLIEST}))[partition][0]
            page = await fetch(client.cluster, place, offset, max_bytes=query.max_bytes, wait_ms=query.wait_ms)
        return _answer(page, query.limit, query.format)

    @routes.get(
        "/api/v1/topics/{topic}/messages",
        "Read messages of all partitions.",
        about="`next` is the `cursor` to go on with: the next offset of each partition. Each partition's messages are "
        "in their order; those of several are merged by their time.",
        path=TopicPath,
        query=ReadTopicQuery,
        answers={200: Reply("Messages, perhaps none.", TopicMessages), **UNLIKE, **READ_PROBLEMS},
    )
    async def read_topic(request: Request, path: TopicPath, query: ReadTopicQuery) -> Answer:
        client, topic = clients.of(request), path.topic
        positions = await start_positions(client, topic, None, query.start, query.cursor)
        reader = Reader(client.cluster, positions)
        taken = await reader.take(query.limit, query.wait_ms)
        by_partition: dict[int, list[Message]] = {}
        for _, partition, record in taken:
            by_partition.setdefault(partition, []).append(shown(record, query.format, partition=partition))
        messages = list(merge(*by_partition.values(), key=lambda message: message.timestamp))
        next_positions = {place.partition: offset for place, offset in reader.positions.items()}
        return Answer(200, encode(TopicMessages(messages, positions_text(next_positions))))

    return routes


async def require_partition(client: Client, topic: str, partition: int) -> None:
    """`Problem` 404 for a partition that there is not, as for one that is written to; 403 for the gateway's own."""
    require_messages(topic)
    image = client.cluster.known(topic) or await client.cluster.topic(topic)
    if partition >= image.partitions:
        client.cluster.forget(topic)  # it may have grown
        image = await client.cluster.topic(topic)
    if partition >= image.partitions:
        raise Problem(
            404,
            f"topic '{topic}' has partitions 0 to {image.partitions - 1}, not {partition}",
            code="unknown-partition",
        )


async def _committed(client: Client, group: str, place: TopicPartition) -> int | None:
    """Where a group is; refused to who may not read in it."""
    await groups.check_reads(client.cluster, group)
    found = (await groups.committed(client.cluster, group, [place])).get(place)
    return None if found is None else found.offset


async def _start(client: Client, path: PartitionPath, query: ReadQuery, committed: int | None) -> int:
    if query.offset is not None and query.timestamp is not None:
        raise bad_request("either offset or timestamp says where to begin, not both")
    if query.offset is not None and query.offset.isdigit():
        return int(query.offset)
    if query.timestamp is not None:
        return await offset_at(client, path.topic, path.partition, time_ms(query.timestamp))
    if query.offset is None and committed is not None:
        return committed
    when = LATEST if query.offset == "latest" else EARLIEST
    return (await list_offsets(client.cluster, path.topic, {path.partition: when}))[path.partition][0]


async def start_positions(
    client: Client, topic: str, partitions: list[int] | None, start: str, cursor: str | None
) -> dict[TopicPartition, int]:
    """Where to read each partition from: by a cursor, else from an end or a time."""
    require_messages(topic)
    count = (await client.cluster.topic(topic)).partitions
    wanted = list(range(count)) if partitions is None else sorted(set(partitions))
    if wanted[-1] >= count:
        raise Problem(404, f"topic '{topic}' has partitions 0 to {count - 1}", code="unknown-partition")
    given = read_positions(cursor, topic)
    missing = [partition for partition in wanted if TopicPartition(topic, partition) not in given]
    found = {place: offset for place, offset in given.items() if place.partition in wanted}
    if start in ("earliest", "latest"):
        when = EARLIEST if start == "earliest" else LATEST
        offsets = await list_offsets(client.cluster, topic, dict.fromkeys(missing, when)) if missing else {}
        return found | {TopicPartition(topic, p): offset for p, (offset, _) in offsets.items()}
    time = time_ms(start)
    return found | {TopicPartition(topic, p): await offset_at(client, topic, p, time) for p in missing}


def positions_text(positions: dict[int, int]) -> str:
    """The next offset of each partition: `0:42,1:17`."""
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(positions.items()))


_positions: Final = re.compile(_POSITIONS)


def read_positions(text: str | None, topic: str) -> dict[TopicPartition, int]:
    """The same, read."""
    if not text:
        return {}
    if not _positions.fullmatch(text):
        raise bad_request("Last-Event-ID is not an id of this stream")
    pairs = (pair.split(":") for pair in text.split(","))
    return {TopicPartition(topic, int(partition)): int(offset) for partition, offset in pairs}


async def offset_at(client: Client, topic: str, partition: int, time: int) -> int:
    """The first offset of a time or later; the end where there is none."""
    (offset, _) = (await list_offsets(client.cluster, topic, {partition: time}))[partition]
    if offset >= 0:
        return offset
    return (await list_offsets(client.cluster, topic, {partition: LATEST}))[partition][0]


def time_ms(text: str) -> int:
    """A time in milliseconds since 1970; without a zone it is UTC."""
    if text.isdigit():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise bad_request(f"'{text}' is not a time") from None
    return max(int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000), 0)


async def _out_of_range(client: Client, topic: str, partition: int, offset: int) -> Problem:
    start = (await list_offsets(client.cluster, topic, {partition: EARLIEST}))[partition][0]
    end = (await list_offsets(client.cluster, topic, {partition: LATEST}))[partition][0]
    return Problem(
        416,
        f"there is no offset {offset} in partition {partition} of '{topic}': it has {start} to {end}",
        code="offset-out-of-range",
        more={"log_start_offset": start, "high_watermark": end},
    )


def _answer(page: Page, limit: int, form: str) -> Answer:
    records = page.records[:limit]
    next_offset = page.next_offset if len(records) == len(page.records) else records[-1].offset + 1
    messages = [shown(record, form) for record in records]
    return Answer(200, encode(Messages(messages, next_offset, page.high_watermark, page.log_start_offset)))
