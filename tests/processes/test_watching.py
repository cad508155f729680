"""`headrace top` and `headrace doctor` beside a cluster of processes: what goes wrong is seen within ten seconds."""

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from headrace.cli.top.app import TopApp
from headrace.cli.top.tables import FIRST_ORDER, TableKind
from headrace.ops.observer import Observer
from tests.faults.test_cluster_exhausted import small_disk
from tests.faults.test_full_disk import fill
from tests.support.cli import Run
from tests.support.process import START_SECONDS, ClusterProcesses, wait_for

pytestmark = pytest.mark.slow

SEEN_SECONDS = 10.0
SESSION_SECONDS = 4
SETTINGS = {"auto.create.topics.enable": "false", "zookeeper.session.timeout.ms": str(SESSION_SECONDS * 1000)}
FULL, KILLED = 3, 2
RECORDS = 3_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    """Three brokers, the last one on a small disk. Tests leave it well."""
    data = tmp_path_factory.mktemp("watching")
    with small_disk(data / f"data-{FULL}"), ClusterProcesses(data, 3, settings=SETTINGS) as processes:
        make_topic(processes)
        yield processes


class Screen:
    """`headrace top` in this process, and what is on its screen."""

    def __init__(self, app: TopApp, pilot: Pilot[None]) -> None:
        self._app = app
        self._pilot = pilot

    def health(self) -> str:
        return str(self._app.query_one("#health", Static).content)

    def row(self, section: TableKind, name: str) -> tuple[str, str]:
        """The cells of a row as text, and the style of its first one."""
        table = self._app.query_one(f"#{section}", DataTable)
        if name not in {str(key.value) for key in table.rows}:
            return "", ""
        cells = table.get_row(name)
        return " ".join(cell.plain for cell in cells), str(cells[0].style)

    async def shows(self, what: str, holds: Callable[[], bool], seconds: float = SEEN_SECONDS) -> None:
        """Returns when the screen shows something; fails when it does not in time."""
        try:
            async with asyncio.timeout(seconds):
                while not holds():
                    await self._pilot.pause(0.05)
        except TimeoutError:
            raise AssertionError(f"{what}: not after {seconds:g} s; the screen says: {self.health()}") from None


def on_screen(bootstrap: str, talk: Callable[[Screen], Awaitable[None]]) -> None:
    with Observer(bootstrap) as observer:
        app = TopApp(observer.observe, interval=0.5, orders=dict(FIRST_ORDER))

        async def main() -> None:
            async with app.run_test(size=(80, 24)) as pilot:
                await talk(Screen(app, pilot))

        asyncio.run(main())


def doctor(run: Run, cluster: ClusterProcesses, *checks: str) -> tuple[int, dict[str, list[str]]]:
    """The exit code, and what is wrong, by check."""
    options = [word for check in checks for word in ("--check", check)]
    result = run("doctor", "-b", cluster.bootstrap, "--json", "--max-lag", str(RECORDS), *options)
    found: dict[str, list[str]] = {}
    for finding in json.loads(result.stdout)["checks"]:
        if finding["status"] != "ok":
            assert finding["advice"]
            found.setdefault(finding["check"], []).append(finding["found"])
    return result.exit_code, found


def tells(run: Run, cluster: ClusterProcesses, check: str, text: str, code: int) -> None:
    """Returns when the doctor tells something by itself and ends with a code; fails when it does not in time.

    A broker that is gone does not answer at first; once its session is over, it is not alive.
    """

    def holds() -> bool:
        exit_code, found = doctor(run, cluster, check)
        return exit_code == code and any(text in each for each in found.get(check, ()))

    wait_for(f"the doctor tells: {text}", holds, SEEN_SECONDS)


def make_topic(cluster: ClusterProcesses) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    assignment = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
    admin.create_topics([NewTopic("orders", 3, replica_assignment=assignment)])["orders"].result(60)


def commit(cluster: ClusterProcesses, group: str) -> None:
    """Have a group that stands at the beginning."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition("orders", p, 0) for p in range(3)], asynchronous=False)
    consumer.close()


def produce(cluster: ClusterProcesses, count: int, size: int = 100) -> None:
    settings: dict[str, Any] = {"bootstrap.servers": cluster.bootstrap, "linger.ms": 5}
    producer = Producer(settings)
    for number in range(count):
        producer.produce("orders", bytes(size), partition=number % 3)
    assert producer.flush(60) == 0


def test_lag_a_full_disk_and_a_killed_broker_are_seen_within_ten_seconds(cluster: ClusterProcesses, run: Run) -> None:
    commit(cluster, "billing")
    assert doctor(run, cluster, "brokers", "partitions", "disk", "groups", "clock", "transactions") == (0, {})

    async def talk(screen: Screen) -> None:
        await screen.shows("all is well", lambda: screen.health() == "ok: all replicas are in sync", START_SECONDS)

        await asyncio.to_thread(produce, cluster, RECORDS)
        await screen.shows("the lag", lambda: "3k" in screen.row(TableKind.GROUPS, "billing")[0])
        await asyncio.to_thread(tells, run, cluster, "groups", f"{RECORDS:,} records behind", 1)

        ballast = cluster.data_of(FULL) / "ballast"
        fill(ballast)
        await asyncio.to_thread(produce, cluster, 300, 10_000)
        await screen.shows("the full disk", lambda: screen.row(TableKind.BROKERS, str(FULL))[1] == "bold red")
        assert "disk full" in screen.row(TableKind.BROKERS, str(FULL))[0]
        await asyncio.to_thread(tells, run, cluster, "disk", f"broker {FULL}: disk full", 2)

        cluster[KILLED].kill()
        await screen.shows("the killed broker", lambda: screen.row(TableKind.BROKERS, str(KILLED))[1] == "bold red")
        assert "does not answer" in screen.row(TableKind.BROKERS, str(KILLED))[0]
        await asyncio.to_thread(tells, run, cluster, "brokers", f"broker {KILLED} ", 2)

        ballast.unlink()
        await asyncio.to_thread(cluster.start, [KILLED])
        await screen.shows(
            "all is well again", lambda: screen.health() == "ok: all replicas are in sync", START_SECONDS
        )

    on_screen(cluster.bootstrap, talk)


def test_a_cluster_that_goes_and_comes_is_followed_and_a_hanging_broker_keeps_nobody_waiting(
    cluster: ClusterProcesses, run: Run
) -> None:
    async def talk(screen: Screen) -> None:
        await screen.shows("all is well", lambda: screen.health().startswith("ok"), START_SECONDS)
        cluster[1].pause()
        await screen.shows("the hanging broker", lambda: screen.row(TableKind.BROKERS, "1")[1] == "bold red")
        await asyncio.to_thread(tells, run, cluster, "brokers", "broker 1 ", 2)
        cluster[1].resume()
        for broker in cluster.brokers.values():
            broker.kill()
        await screen.shows("nobody answers", lambda: "no broker answers" in screen.health())
        assert (await asyncio.to_thread(doctor, run, cluster, "brokers"))[0] == 3
        await asyncio.to_thread(cluster.start, cluster.brokers)
        await screen.shows("all is well again", lambda: screen.health().startswith("ok"), START_SECONDS)

    on_screen(cluster.bootstrap, talk)


def test_a_cluster_whose_zookeeper_hangs_is_shown_by_what_its_brokers_say(cluster: ClusterProcesses, run: Run) -> None:
    (server,) = cluster.zookeeper.servers

    async def talk(screen: Screen) -> None:
        await screen.shows("all is well", lambda: screen.health().startswith("ok"), START_SECONDS)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            lost = "ZooKeeper unreachable, broker not registered"
            seconds = SESSION_SECONDS + SEEN_SECONDS
            await screen.shows("what they say", lambda: screen.health().count(lost) == 3, seconds)
            for broker in cluster.brokers:
                assert "ZooKeeper unreachable" in screen.row(TableKind.BROKERS, str(broker))[0]
            code, found = await asyncio.to_thread(doctor, run, cluster, "brokers", "partitions", "store")
            assert code == 2
            for broker in cluster.brokers:
                assert any(f"broker {broker}: ZooKeeper unreachable" in each for each in found["store"])
            assert "offline partitions" in str(found["partitions"])
            once = await asyncio.to_thread(run, "top", "--once", "-b", cluster.bootstrap)
            assert (once.exit_code, lost in once.stdout, "orders" in once.stdout) == (0, True, True)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        await screen.shows("all is well again", lambda: screen.health().startswith("ok"), START_SECONDS)

    on_screen(cluster.bootstrap, talk)
