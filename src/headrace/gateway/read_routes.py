"""GET …/messages: records of one partition, by offset or by time, with a long poll."""

from datetime import UTC, datetime
from typing import Any, Final

from headrace.client.aio.client import Client
from headrace.client.aio.fetching import Page, fetch, list_offsets
from headrace.client.core.offsets import EARLIEST, LATEST
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.topic_partition import TopicPartition
from headrace.web.messages import Answer, Request
from headrace.web.problem import Problem, bad_request
from headrace.web.routes import Query, Reply, Routes
from headrace.web.shapes import Array, Choice, Integer, Object, Text

from .credentials import Clients
from .names import PARTITION, TOPIC
from .records import FORMATS, SHOWN, joined, shown

MOST_RECORDS: Final = 10_000
MOST_WAIT_MS: Final = 30_000
MOST_BYTES: Final = 32 << 20
READ_PROBLEMS: Final = {
    401: Reply("Credentials are missing, or the brokers do not take them."),
    403: Reply("Not allowed to read here."),
    404: Reply("There is no such topic or partition."),
    502: Reply("The brokers refused for a reason that has no status of its own."),
    503: Reply("The cluster does not answer."),
}
FORMAT: Final = Query(Choice(*FORMATS), "auto", "How values are shown; `auto` is JSON, else text, else base64.")
WAIT: Final = Query(Integer(0, MOST_WAIT_MS), 0, "Milliseconds to wait for the first record.")
LIMIT: Final = Query(Integer(1, MOST_RECORDS), 100, "How many records at most.")
_OFFSET: Final = Text(
    pattern=r"earliest|latest|[0-9]{1,18}", most=18, wanted="an offset: a number, 'earliest' or 'latest'"
)
_TIME: Final = Text(
    pattern=r"[0-9]{1,15}|[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9:.]{1,15}(Z|[+-][0-9]{2}:?[0-9]{2})?)?",
    most=40,
    wanted="a time: milliseconds since 1970, or 2026-01-31T12:00:00Z",
)
TIME: Final = Query(_TIME, None, "Begin at the first record of this time or later; instead of `offset`.")
_PAGE: Final = Object(
    {
        "topic": Text(),
        "partition": Integer(),
        "records": Array(SHOWN),
        "next_offset": Integer(),
        "high_watermark": Integer(),
        "log_start_offset": Integer(),
    },
    required=("topic", "partition", "records", "next_offset", "high_watermark", "log_start_offset"),
)


def read_routes(clients: Clients) -> Routes:
    """The routes that read partitions."""
    routes = Routes(tag="Read", about="Records out of partitions, without a group.")

    @routes.get(
        "/api/v1/topics/{topic}/partitions/{partition}/messages",
        "Read records of a partition.",
        about="`next_offset` is where to go on. With `wait_ms` an empty answer comes only after that time.",
        params={"topic": TOPIC, "partition": PARTITION},
        query={
            "offset": Query(_OFFSET, None, "Where to begin: a number, `earliest` (the default) or `latest`."),
            "timestamp": TIME,
            "limit": LIMIT,
            "wait_ms": WAIT,
            "max_bytes": Query(Integer(1, MOST_BYTES), 1 << 20, "About how much to read; one record always comes."),
            "format": FORMAT,
        },
        answers={
            200: Reply("Records, perhaps none.", _PAGE),
            416: Reply("There is no such offset; the answer tells which there are."),
            422: Reply("A value is not of the format asked for."),
            **READ_PROBLEMS,
        },
    )
    async def read_messages(request: Request) -> Answer:
        client = clients.of(request)
        topic, partition = request.params["topic"], request.params["partition"]
        offset = await _start(client, topic, partition, request.query)
        try:
            page = await fetch(
                client.cluster,
                TopicPartition(topic, partition),
                offset,
                max_bytes=request.query["max_bytes"],
                wait_ms=request.query["wait_ms"],
            )
        except CodedError as error:
            if error.code is ErrorCode.offset_out_of_range:
                raise await _out_of_range(client, topic, partition, offset) from None
            raise
        return _answer(topic, partition, page, request.query["limit"], request.query["format"])

    return routes


async def _start(client: Client, topic: str, partition: int, query: Any) -> int:
    asked, time = query["offset"], query["timestamp"]
    if asked is not None and time is not None:
        raise bad_request("either offset or timestamp says where to begin, not both")
    if asked is not None and asked.isdigit():
        return int(asked)
    if time is not None:
        return await offset_at(client, topic, partition, time_ms(time))
    when = LATEST if asked == "latest" else EARLIEST
    return (await list_offsets(client.cluster, topic, {partition: when}))[partition][0]


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


def _answer(topic: str, partition: int, page: Page, limit: int, form: str) -> Answer:
    records = page.records[:limit]
    next_offset = page.next_offset if len(records) == len(page.records) else records[-1].offset + 1
    texts = joined(shown(topic, partition, record, form) for record in records)
    body = (
        f'{{"topic":"{topic}","partition":{partition},"records":{texts},"next_offset":{next_offset},'
        f'"high_watermark":{page.high_watermark},"log_start_offset":{page.log_start_offset}}}'
    )
    return Answer(200, body.encode())
