"""`headrace top`: its tables, its screen driven by keys and mouse, and the command against a broker in this process."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from queue import SimpleQueue

import pytest
from rich.text import Text
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Static

from headrace.cli.top.app import Details, TopApp
from headrace.cli.top.tables import FIRST_ORDER, Order, TableKind, arranged, as_values, compact, order_for, sort_keys
from headrace.client.errors import ClientError
from headrace.health import ProblemCode
from headrace.ops.rates import RateModel
from headrace.ops.samples import ClusterSample
from headrace.testing import Broker
from tests.support.cli import Headrace, Run
from tests.support.process import free_port
from tests.unit.ops.test_rates import ORDERS, PAYMENTS, group, health, sample

pytestmark = pytest.mark.slow

LOOKS = [
    sample(10, b1={"ends": {ORDERS: 0, PAYMENTS: 0}, "groups": (group(0),)}, b2={}),
    sample(12, b1={"ends": {ORDERS: 20, PAYMENTS: 4000}, "groups": (group(5),)}, b2={}),
]
DOWN = sample(14, b1={"ends": {}}, b2={"reason": "10.0.0.1:9092: connection refused"})
FULL = sample(16, b1={"health": health(1, ProblemCode.LOG_DIR_FULL)}, b2={})
AWAY = sample(18, reason="no broker answers at 10.0.0.1:9092", b1={"reason": "refused"}, b2={"reason": "refused"})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "-"),
        (0, "0"),
        (7.52, "7.5"),
        (999, "999"),
        (999.6, "1.0k"),
        (1234, "1.2k"),
        (35_400_000, "35M"),
        (-1500, "-1.5k"),
    ],
)
def test_numbers_are_short(value: float | None, expected: str) -> None:
    assert compact(value) == expected


def test_bytes_have_units_of_1024() -> None:
    assert [compact(n, 1024) for n in (512, 2048, 3 << 30)] == ["512", "2K", "3G"]


def test_rows_are_sorted_the_largest_first_and_unknown_last() -> None:
    model = RateModel()
    seen = [model.add(each) for each in LOOKS][-1]
    by_rate = [row.name for row in arranged(seen.topics, TableKind.TOPICS, Order(key="rate"))]  # type: ignore[union-attr]
    assert by_rate == ["payments", "orders"]
    by_name = [row.name for row in arranged(seen.topics, TableKind.TOPICS, Order(key="name"))]  # type: ignore[union-attr]
    assert by_name == ["orders", "payments"]
    unknown = [replace(seen.topics[0], name="a", messages_in=None), *seen.topics]
    reverse = Order(key="rate", is_reversed=True)
    assert [r.name for r in arranged(unknown, TableKind.TOPICS, reverse)] == ["orders", "payments", "a"]  # type: ignore[union-attr]


def test_the_filter_is_by_name_and_leaves_brokers_to_be_seen() -> None:
    seen = RateModel().add(LOOKS[0])
    assert [r.name for r in arranged(seen.topics, TableKind.TOPICS, Order(key="name"), "PAY")] == ["payments"]  # type: ignore[union-attr]
    assert len(arranged(seen.brokers, TableKind.BROKERS, Order(key="name"), "PAY")) == 2


def test_tables_without_a_column_keep_their_order() -> None:
    orders = order_for("lag")
    assert orders[TableKind.GROUPS] == Order(key="lag")
    assert orders[TableKind.TOPICS] == FIRST_ORDER[TableKind.TOPICS]


def test_json_has_every_number() -> None:
    values = json.loads(json.dumps(as_values(RateModel().add(FULL))))
    assert values["brokers"][0]["problems"][0]["code"] == "log-dir-full"
    assert values["severity"] == "critical"


# The screen


Talk = Callable[[TopApp, Pilot[None], "SimpleQueue[ClusterSample]"], Awaitable[None]]


def on_screen(talk: Talk, looks: list[ClusterSample]) -> TopApp:
    """Have the app see these looks, one after the other, then talk to it; it waits for more that are put."""
    queue: SimpleQueue[ClusterSample] = SimpleQueue()
    for each in looks:
        queue.put(each)
    app = TopApp(queue.get, interval=0.01, orders=dict(FIRST_ORDER))

    async def main() -> None:
        async with app.run_test(size=(80, 24)) as pilot:
            await seen(app, pilot, len(looks))
            await talk(app, pilot, queue)

    asyncio.run(main())
    queue.put(looks[-1])  # ends the thread that waits for it
    return app


async def seen(app: TopApp, pilot: Pilot[None], looks: int) -> None:
    """Wait until the app has looked so often."""
    while app.looks < looks:
        await pilot.pause(0.01)


def names(app: TopApp, section: TableKind) -> list[str]:
    table = app.query_one(f"#{section}", DataTable)
    return [str(key.value) for key in table.rows]


def cells(app: TopApp, section: TableKind, row: str) -> list[Text]:
    return app.query_one(f"#{section}", DataTable).get_row(row)


def text_of(app: TopApp, selector: str) -> str:
    return str(app.query_one(selector, Static).content)


def test_brokers_topics_and_groups_are_on_one_screen_of_80_by_24() -> None:
    async def talk(app: TopApp, pilot: Pilot[None], queue: "SimpleQueue[ClusterSample]") -> None:
        assert names(app, TableKind.TOPICS) == ["payments", "orders"]
        assert [cell.plain for cell in cells(app, TableKind.TOPICS, "payments")][:2] == ["payments", " 2k"]
        assert cells(app, TableKind.GROUPS, "billing")[3].plain == " 15"
        for section in TableKind:
            region = app.query_one(f"#{section}").region
            assert region.height >= 3
            assert region.right <= 80
            assert region.bottom <= 24
        assert text_of(app, "#health") == "ok: all replicas are in sync"
        assert "controller 1" in text_of(app, "#head")

    on_screen(talk, LOOKS)


def test_a_broker_that_went_away_is_red_with_its_reason() -> None:
    async def talk(app: TopApp, pilot: Pilot[None], queue: "SimpleQueue[ClusterSample]") -> None:
        row = cells(app, TableKind.BROKERS, "2")
        assert {cell.style for cell in row} == {"bold red"}
        assert row[-1].plain == " does not answer"
        app.query_one("#brokers").focus()
        await pilot.press("down")
        await pilot.pause()
        assert text_of(app, "#about") == "2: does not answer: 10.0.0.1:9092: connection refused"
        assert text_of(app, "#health") == "critical: broker 2 does not answer"

    on_screen(talk, [*LOOKS, DOWN])


def test_an_unreachable_cluster_is_said_in_the_head_and_the_screen_goes_on() -> None:
    async def talk(app: TopApp, pilot: Pilot[None], queue: "SimpleQueue[ClusterSample]") -> None:
        assert text_of(app, "#health") == "critical: no broker answers at 10.0.0.1:9092"
        assert names(app, TableKind.TOPICS)
        queue.put(replace(LOOKS[1], at=20))
        await seen(app, pilot, 4)
        assert text_of(app, "#health") == "ok: all replicas are in sync"

    on_screen(talk, [*LOOKS, AWAY])


def test_a_cluster_that_was_never_reached_is_waited_for() -> None:
    async def talk(app: TopApp, pilot: Pilot[None], queue: "SimpleQueue[ClusterSample]") -> None:
        assert names(app, TableKind.TOPICS) == ["payments", "orders"]

    on_screen(talk, [ClusterSample(at=5, reason="no broker answers"), *LOOKS])


def test_keys_sort_filter_pause_and_zoom() -> None:
    async def talk(app: TopApp, pilot: Pilot[None], queue: "SimpleQueue[ClusterSample]") -> None:
        await pilot.press("n")
        assert names(app, TableKind.TOPICS) == ["orders", "payments"]
        await pilot.press("S")
        assert names(app, TableKind.TOPICS) == ["payments", "orders"]
        await pilot.press("r")
        assert app.orders[TableKind.TOPICS] == Order(key="rate")
        await pilot.press("s")
        assert app.orders[TableKind.TOPICS] == Order(key="bytes_in")
        await pilot.press("slash", *"ord")
        assert names(app, TableKind.TOPICS) == ["orders"]
        await pilot.press("enter")
        assert not app.query_one("#filter", Input).display
        assert names(app, TableKind.TOPICS) == ["orders"]
        await pilot.press("escape")
        assert len(names(app, TableKind.TOPICS)) == 2
        await pilot.press("z")
        assert [s for s in TableKind if app.query_one(f"#{s}").display] == [TableKind.TOPICS]
        await pilot.press("z", "p")
        assert text_of(app, "#health").startswith("PAUSED")
        shown = app.dashboard
        queue.put(DOWN)
        await seen(app, pilot, 3)
        assert app.dashboard is shown
        await pilot.press("q")

    assert on_screen(talk, LOOKS).return_code == 0


def test_a_click_on_a_column_sorts_by_it_and_a_second_one_turns_it_round() -> None:
    async def talk(app: TopApp, pilot: Pilot[None], queue: "SimpleQueue[ClusterSample]") -> None:
        table = app.query_one("#topics", DataTable)
        await pilot.click(table, offset=(3, 0))
        assert app.orders[TableKind.TOPICS] == Order(key="name")
        await pilot.click(app.query_one("#topics", DataTable), offset=(3, 0))
        assert app.orders[TableKind.TOPICS] == Order(key="name", is_reversed=True)
        assert names(app, TableKind.TOPICS) == ["payments", "orders"]

    on_screen(talk, LOOKS)


@pytest.mark.parametrize(
    ("section", "looks", "expected"),
    [
        (TableKind.BROKERS, [FULL], "free space on the disk"),
        (TableKind.TOPICS, LOOKS, "1,2"),
        (TableKind.GROUPS, LOOKS, "Stable, classic protocol, 1 members, coordinator 1"),
    ],
)
def test_details_say_everything_of_a_row(section: TableKind, looks: list[ClusterSample], expected: str) -> None:
    async def talk(app: TopApp, pilot: Pilot[None], queue: "SimpleQueue[ClusterSample]") -> None:
        app.query_one(f"#{section}").focus()
        await pilot.press("d")
        await pilot.pause()
        assert isinstance(app.screen, Details)
        assert expected in str(app.screen.query_one("#lines", Static).content)
        await pilot.press("escape")
        await pilot.pause()
        assert not isinstance(app.screen, Details)

    on_screen(talk, looks)


def test_the_cursor_stays_on_its_row_when_the_order_changes() -> None:
    async def talk(app: TopApp, pilot: Pilot[None], queue: "SimpleQueue[ClusterSample]") -> None:
        table = app.query_one("#topics", DataTable)
        await pilot.press("down")
        assert names(app, TableKind.TOPICS)[table.cursor_row] == "orders"
        await pilot.press("n")
        assert names(app, TableKind.TOPICS)[table.cursor_row] == "orders"

    on_screen(talk, LOOKS)


def test_a_refused_login_ends_it_with_the_reason() -> None:
    refused = ClientError("not let in", "SASL_AUTHENTICATION_FAILED")

    def observe() -> ClusterSample:
        raise refused

    app = TopApp(observe, interval=0.05, orders=dict(FIRST_ORDER))

    async def main() -> None:
        async with app.run_test() as pilot:
            while app.failure is None:
                await pilot.pause(0.01)

    asyncio.run(main())
    assert app.failure is refused


# The command


def test_once_prints_a_screen_and_json_the_same_as_data(cluster: Broker, headrace: Headrace) -> None:
    topic = cluster.create_topic("top-once", partitions=2)
    text = headrace("top", "--once", "--interval", "0.2", "--filter", topic).stdout.decode()
    assert "ok: all replicas are in sync" in text
    (line,) = [line for line in text.splitlines() if line.startswith(topic)]
    assert line.split() == [topic, "0", "0", "0", "2", "1", "-"]
    values = json.loads(headrace("top", "--json", "--interval", "0.2").stdout)
    row = next(row for row in values["topics"] if row["name"] == topic)
    assert (row["partitions"], row["messages_in"]) == (2, 0.0)
    (broker,) = values["brokers"]
    assert broker["is_reached"]
    assert broker["connections"] >= 1
    assert broker["disk_free"] > 0


def test_the_lag_of_a_group_is_what_group_list_says(cluster: Broker, headrace: Headrace) -> None:
    topic = cluster.create_topic("top-lag", partitions=3)
    for partition in range(3):
        headrace("produce", topic, "--partition", str(partition), stdin=b"1\n2\n")
    headrace("consume", topic, "--group", "top-lag", "--count", "1")
    values = json.loads(headrace("top", "--json", "--interval", "0.2").stdout)
    listed = json.loads(headrace("group", "list", "--json").stdout)
    (row,) = [each for each in values["groups"] if each["name"] == "top-lag"]
    assert (row["lag"], row["uncommitted"]) == (5, 2)
    assert [each["lag"] for each in listed if each["group"] == "top-lag"] == [5]


def test_once_says_that_no_broker_answers(run: Run) -> None:
    result = run("top", "--once", "-b", f"127.0.0.1:{free_port()}")
    assert result.exit_code == 3
    assert "no broker answers at 127.0.0.1" in result.output
    assert "connection refused" in result.output


def test_an_unknown_column_is_refused_with_those_there_are(run: Run) -> None:
    result = run("top", "--sort", "speed")
    assert result.exit_code == 2
    assert "lag" in result.output
    assert "lag" in sort_keys()
