"""Handlers without a broker: what is called with what, tried again when, and put where."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Message as Record

from headrace.client import Message, RemoteError, expires_in
from headrace.client.errors import REGISTRY_UNREACHABLE
from headrace.client.formats import Format, format_of
from headrace.client.handlers import App, HandlerFailed, Outbox, Retry, TestClient
from headrace.client.handlers.attempt import Attempts
from headrace.client.handlers.calling import as_coroutine
from headrace.client.handlers.lanes import Lanes, Progress, Work
from headrace.client.handlers.retry import delay_topic
from headrace.client.registry import RegistryUnreachable


@dataclass
class Order:
    id: int


def run(app: App, talk: Callable[[TestClient], Awaitable[None]]) -> None:
    async def main() -> None:
        async with TestClient(app) as client:
            await talk(client)

    asyncio.run(main())


def test_a_handler_gets_the_value_or_the_message_and_sends_what_it_returns_or_puts_out() -> None:
    app = App()
    seen: list[Any] = []

    @app.subscribe("orders", group="a", publish="sums")
    async def total(order: Order) -> dict[str, int]:
        return {"sum": order.id + 1}

    @app.subscribe("sums", group="b")
    async def note(message: Message[dict[str, int]], out: Outbox) -> None:
        seen.append((message.key, message.value))
        out.send("notes", "seen", key=message.key, headers={"by": "b"})

    @app.subscribe("notes", group="c")
    def blocking(text: str) -> None:
        seen.append(text)

    async def talk(client: TestClient) -> None:
        await client.send("orders", Order(1), key="alice")
        assert client.messages("sums", dict[str, int])[0].value == {"sum": 2}
        assert client.messages("notes")[0].header("by") == "b"

    run(app, talk)
    assert seen == [(b"alice", {"sum": 2}), "seen"]


def failing(app: App, times: int, **options: Any) -> list[int]:
    """A handler of `orders` that fails so many times; the attempts that were made."""
    attempts: list[int] = []

    @app.subscribe("orders", group="g", **options)
    async def handle(order: Order, out: Outbox) -> None:
        out.send("out", order)
        attempts.append(order.id)
        if len(attempts) <= times:
            raise ConnectionError("no answer")

    return attempts


def test_a_handler_is_tried_again_in_place_and_what_a_failed_attempt_sent_is_forgotten() -> None:
    app = App()
    attempts = failing(app, 2, retry=Retry(in_place=3, backoff=1.0))

    async def talk(client: TestClient) -> None:
        await client.send("orders", Order(1))
        assert len(client.messages("out")) == 1
        assert client.slept == 3.0

    run(app, talk)
    assert len(attempts) == 3


def test_after_that_it_waits_in_delay_topics_each_for_its_time_and_then_is_a_dead_letter_with_everything() -> None:
    app = App()
    attempts = failing(app, 9, retry=Retry(in_place=2, delays=(10, 60)), dead_letter=True)

    async def talk(client: TestClient) -> None:
        await client.send("other", "so that offsets differ")
        await client.send("orders", Order(7), key="alice", headers={"trace": "t"})
        assert len(attempts) == 2
        await client.advance(9.9)
        assert len(attempts) == 2
        await client.advance(0.2)
        assert len(attempts) == 3
        assert client.dead_letters("orders", "g") == []
        await client.advance(60)
        (letter,) = client.dead_letters("orders", "g")
        assert (letter.key, letter.data) == (b"alice", b'{"id":7}')
        about = {name: (data or b"").decode() for name, data in letter.headers}
        assert about.pop("headrace.dlq.timestamp").isdecimal()
        assert about == {
            "trace": "t",
            "headrace.dlq.topic": "orders",
            "headrace.dlq.partition": "0",
            "headrace.dlq.offset": "0",
            "headrace.dlq.attempts": "4",
            "headrace.dlq.group": "g",
            "headrace.dlq.reason": "ConnectionError: no answer",
        }

    run(app, talk)
    assert len(attempts) == 4


def test_an_error_that_is_not_to_be_retried_and_a_value_of_another_type_are_dead_letters_at_once() -> None:
    app = App()
    attempts = failing(app, 9, retry=Retry(in_place=5, on=(TimeoutError,)), dead_letter="graveyard")

    async def talk(client: TestClient) -> None:
        await client.send("orders", Order(1))
        await client.send("orders", b"not JSON")
        assert [one.header("headrace.dlq.attempts") for one in client.messages("graveyard")] == ["1", "1"]

    run(app, talk)
    assert len(attempts) == 1


def test_a_message_that_was_made_with_the_headers_of_one_that_waited_is_no_less_new() -> None:
    app = App()

    @app.subscribe("orders", group="g", retry=Retry(in_place=1, delays=(1,)))
    async def forward(message: Message[Order], out: Outbox) -> None:
        if message.topic == "orders":
            raise ValueError("not yet")
        out.send("bills", message.value, headers=message.headers)

    bills: list[int] = []

    @app.subscribe("bills", group="g", retry=Retry(in_place=1, delays=(1,)), dead_letter=True)
    async def fail(order: Order) -> None:
        bills.append(order.id)
        raise ValueError("no")

    async def talk(client: TestClient) -> None:
        await client.send("orders", Order(1))
        await client.advance(60)
        assert len(bills) == 2
        (letter,) = client.dead_letters("bills", "g")
        assert letter.header("headrace.dlq.topic") == "bills"

    run(app, talk)


def test_with_nothing_said_of_dead_letters_the_failure_tells_what_to_do() -> None:
    app = App()
    failing(app, 9)

    async def talk(client: TestClient) -> None:
        with pytest.raises(HandlerFailed, match=r"group 'g' failed at orders-0@0 after 1 attempt: .*dead_letter=True"):
            await client.send("orders", Order(1))

    run(app, talk)


def test_the_lifespan_is_around_the_run() -> None:
    events: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        events.append("begin")
        yield
        events.append("end")

    async def talk(client: TestClient) -> None:
        events.append("run")

    run(App(lifespan=lifespan), talk)
    assert events == ["begin", "run", "end"]


def test_a_lifespan_may_be_a_bare_generator_and_is_nothing_else() -> None:
    events: list[str] = []

    async def lifespan() -> AsyncIterator[None]:
        events.append("begin")
        try:
            yield
        finally:
            events.append("end")

    async def talk(client: TestClient) -> None:
        events.append("run")

    run(App(lifespan=lifespan), talk)
    assert events == ["begin", "run", "end"]
    with pytest.raises(TypeError, match="asynccontextmanager"):
        App(lifespan=lifespan())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"delivery": "twice"}, "none of"),
        ({"delivery": "at-most-once", "retry": Retry()}, "not tried again"),
        ({"concurrency": 0}, "at least 1"),
        ({"group": ""}, "no name"),
        ({"group": "billing/eu", "dead_letter": True}, "'t.billing/eu.dead-letter', which cannot be"),
        ({"group": "g" * 240, "retry": Retry(delays=(1,))}, "1 to 249"),
        ({"dead_letter": "a b"}, "'a b', which cannot be"),
    ],
)
def test_what_makes_no_sense_is_refused_where_it_is_said(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        App().subscribe("t", **{"group": "g", **options})


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"in_place": 0}, "in_place=0"),
        ({"delays": 10}, "tuple of seconds"),
        ({"delays": (1, float("nan"))}, "above 0"),
        ({"backoff": float("inf")}, "backoff"),
        ({"on": ValueError}, "types of errors"),
        ({"on": ("ValueError",)}, "types of errors"),
    ],
)
def test_a_retry_that_could_not_be_done_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Retry(**options)


def test_delays_of_weeks_have_topics_and_growing_pauses_stay_numbers() -> None:
    names = [delay_topic("t", "g", delay) for delay in (0.5, 10, 1_209_600, 1_209_600.5)]
    assert names == ["t.g.retry.0.5s", "t.g.retry.10s", "t.g.retry.1209600s", "t.g.retry.1209600.5s"]
    assert Retry(in_place=100_000, backoff=0.5, max_backoff=8).pause(90_000) == 8.0


def test_a_handler_with_other_parameters_is_refused() -> None:
    async def handler(order: Order, other: int) -> None: ...

    with pytest.raises(TypeError, match="Outbox"):
        App().subscribe("t", group="g")(handler)
    with pytest.raises(ValueError, match="in_place"):
        Retry(in_place=0)
    with pytest.raises(ValueError, match="topic"):
        App().subscribe(group="g")


def test_a_position_is_that_below_which_all_has_been_handled() -> None:
    progress = Progress()
    assert [progress.follows(offset) for offset in (3, 4, 7, 4)] == [True, True, True, False]
    for offset in (3, 4, 7):
        progress.begin(offset)
    progress.finish(4)
    assert progress.position is None
    progress.finish(3)
    assert progress.position == 5
    progress.finish(7)
    assert progress.position == 8


def test_keys_are_handled_concurrently_each_in_its_order() -> None:
    begun: list[tuple[bytes | None, int]] = []
    gates = {number: asyncio.Event() for number in range(6)}

    async def handle(work: Work) -> None:
        begun.append((work.message.key, work.message.offset))
        await gates[work.message.offset].wait()

    async def main() -> None:
        lanes = Lanes(3, handle)
        task = asyncio.create_task(lanes.run())
        for offset, key in enumerate((b"a", b"a", b"b", b"a", None, b"b")):
            record = Record(topic="t", partition=0, offset=offset, key=key, value=b"")
            lanes.put(Work(Message(record, format_of(bytes)), Progress()))

        async def settle() -> list[int]:
            for _ in range(5):
                await asyncio.sleep(0)
            return [offset for _, offset in begun]

        assert await settle() == [0, 2, 4]
        gates[4].set()
        assert await settle() == [0, 2, 4]
        gates[0].set()
        assert await settle() == [0, 2, 4, 1]
        gates[2].set()
        gates[1].set()
        assert await settle() == [0, 2, 4, 1, 5, 3]
        task.cancel()

    asyncio.run(main())


def test_a_function_that_serves_answers_with_what_it_returns_or_raises() -> None:
    app = App()

    @app.serve("pricing")
    async def price(item: int) -> dict[str, int]:
        return {"price": 10 // item}

    async def talk(client: TestClient) -> None:
        assert await client.call("pricing", 5, reply=dict[str, int]) == {"price": 2}
        with pytest.raises(RemoteError, match="ZeroDivisionError"):
            await client.call("pricing", 0)
        with pytest.raises(RemoteError, match="Undecodable"):
            await client.call("pricing", "no number")

    run(app, talk)


def test_what_a_handler_awaits_may_be_cancelled_and_its_generators_may_be_empty() -> None:
    app = App()

    @app.subscribe("orders", group="g", dead_letter=True)
    async def waiting(_: Order) -> None:
        task = asyncio.create_task(asyncio.sleep(10))
        asyncio.get_running_loop().call_soon(task.cancel)
        await task

    @app.subscribe("texts", group="g", dead_letter=True)
    def searching(_: str) -> str:
        return next(letter for letter in "" if letter)

    async def talk(client: TestClient) -> None:
        await client.send("orders", Order(1))
        await client.send("texts", "a")
        (letter,) = client.dead_letters("orders", "g")
        assert letter.header("headrace.dlq.reason") == (
            "RuntimeError: something that the handler waited for was cancelled"
        )
        (letter,) = client.dead_letters("texts", "g")
        assert letter.header("headrace.dlq.reason") == "RuntimeError: StopIteration: "

    run(app, talk)


@pytest.mark.parametrize("error", [SystemExit(2), BaseException("odd")], ids=repr)
@pytest.mark.parametrize("blocks", [False, True], ids=["coroutine", "thread"])
def test_whatever_a_handler_raises_is_an_error_of_its_message(error: BaseException, blocks: bool) -> None:
    app = App()

    async def waits(_: Order) -> None:
        raise error

    def may_block(_: Order) -> None:
        raise error

    app.subscribe("orders", group="g", dead_letter=True)(may_block if blocks else waits)

    async def talk(client: TestClient) -> None:
        await client.send("orders", Order(1))
        (letter,) = client.dead_letters("orders", "g")
        assert (letter.header("headrace.dlq.reason") or "").startswith(
            f"RuntimeError: the handler raised {type(error).__name__}"
        )

    run(app, talk)


def test_a_handler_may_take_marks_of_deletion() -> None:
    app = App()
    seen: list[Any] = []

    @app.subscribe("orders", group="g")
    async def order(order: Order | None) -> None:
        seen.append(order)

    @app.subscribe("texts", group="g")
    async def text(text: str | None) -> None:
        seen.append(text)

    @app.subscribe("numbers", group="g", dead_letter=True)
    async def number(number: int) -> None:
        seen.append(number)

    async def talk(client: TestClient) -> None:
        for topic, value in (
            ("orders", Order(1)),
            ("orders", None),
            ("texts", "a"),
            ("texts", None),
            ("numbers", None),
        ):
            await client.send(topic, value, key="k")
        assert seen == [Order(1), None, "a", None]
        (letter,) = client.dead_letters("numbers", "g")
        assert letter.data is None

    run(app, talk)


class Framed(Format[Any]):
    """As of a registry that answers from the third time on."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def encode(self, value: str, topic: str) -> bytes:
        return value.encode()

    def is_ready(self, data: bytes) -> bool:
        return len(self.asked) >= 3

    def decode(self, data: bytes, topic: str) -> str:
        self.asked.append(threading.get_ident())
        if len(self.asked) < 3:
            raise RegistryUnreachable("the schema registry does not answer", REGISTRY_UNREACHABLE)
        return data.decode()


def test_a_message_whose_registry_is_away_waits_elsewhere_than_in_the_loop_and_is_no_dead_letter() -> None:
    app, form, slept = App(), Framed(), list[float]()

    @app.subscribe("texts", group="g", value=form, publish="seen", dead_letter=True)
    async def text(text: str) -> str:
        return text

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def main() -> None:
        record = Record(topic="texts", partition=0, offset=0, value=b"a", timestamp=(1, 1))
        (sent,) = await Attempts(app.subscriptions[0], sleep).handle(Message(record, form))
        assert (sent.topic, sent.value) == ("seen", b"a")
        assert threading.get_ident() not in form.asked

    asyncio.run(main())
    assert len(slept) == 2


def test_a_coroutine_behind_a_plain_decorator_is_awaited() -> None:
    app = App()
    seen: list[str] = []

    async def note(text: str) -> None:
        seen.append(text)

    @app.subscribe("texts", group="g")
    def decorated(text: str) -> Any:
        return note(text)

    async def talk(client: TestClient) -> None:
        await client.send("texts", "a")
        assert seen == ["a"]

    run(app, talk)


def test_as_many_handlers_as_are_called_may_block_at_a_time() -> None:
    barrier = threading.Barrier(50)
    call = as_coroutine(lambda: barrier.wait(10))

    async def main() -> list[Any]:
        return await asyncio.gather(*(call() for _ in range(50)))

    assert sorted(asyncio.run(main())) == list(range(50))


def test_a_message_whose_time_is_over_is_left_out_also_when_it_comes_out_of_a_delay() -> None:
    app = App()
    attempts = failing(app, 9, retry=Retry(in_place=1, delays=(10,)), dead_letter=True)

    async def talk(client: TestClient) -> None:
        await client.send("orders", Order(1), headers=expires_in(-1))
        assert attempts == []
        await client.send("orders", Order(2), headers=expires_in(5))
        await client.advance(11)
        assert attempts == [2]
        await client.send("orders", Order(3), headers=expires_in(60))
        await client.advance(11)
        assert attempts == [2, 3, 3]
        await client.send("orders", Order(4), headers={"headrace.expires": "soon"})
        assert attempts == [2, 3, 3, 4]

    run(app, talk)


def test_in_a_program_that_uses_opentelemetry_a_handler_runs_in_the_trace_that_its_message_came_from() -> None:
    from opentelemetry import trace

    app = App()
    traces: list[int] = []

    @app.subscribe("orders", group="g")
    async def handle(order: Order) -> None:
        traces.append(trace.get_current_span().get_span_context().trace_id)

    async def talk(client: TestClient) -> None:
        await client.send("orders", Order(1), headers={"traceparent": f"00-{7:032x}-{2:016x}-01"})

    run(app, talk)
    assert traces == [7]


def test_what_a_handler_delays_comes_when_its_time_has_come() -> None:
    app = App()
    reminded: list[str] = []

    @app.subscribe("orders", group="g")
    async def order(name: str, out: Outbox) -> None:
        out.send("reminders", f"soon {name}", deliver_after=60)
        out.send("reminders", f"now {name}", deliver_after=-1)

    @app.subscribe("reminders", group="g", retry=Retry(in_place=1, delays=(30,)))
    async def remind(text: str) -> None:
        reminded.append(text)
        if reminded.count(text) == 1 and text.startswith("soon"):
            raise ConnectionError

    async def talk(client: TestClient) -> None:
        await client.send("orders", b"tea")
        assert reminded == ["now tea"]
        await client.advance(58)
        assert reminded == ["now tea"]
        await client.advance(10)
        assert reminded == ["now tea", "soon tea"]
        await client.advance(30)
        assert reminded == ["now tea", "soon tea", "soon tea"]

    run(app, talk)
