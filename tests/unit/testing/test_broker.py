import ast
import asyncio
import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from headrace.client.errors import ClientError
from headrace.cluster.store import StoreError
from headrace.config import ConfigError
from headrace.server.broker import Broker as Server
from headrace.testing import Broker
from headrace.testing.plugin import topic_name

pytestmark = pytest.mark.slow


pytest_plugins = ["pytester"]


def send(bootstrap: str, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, value)
    assert producer.flush(60) == 0


def receive(bootstrap: str, topic: str) -> Any:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return consumer.poll(60).value()
    finally:
        consumer.close()


def test_records_go_through_and_nothing_stays() -> None:
    threads = threading.active_count()
    with Broker() as broker:
        broker.create_topic("t")
        send(broker.bootstrap, "t", b"hello")
        assert receive(broker.bootstrap, "t") == b"hello"
        data = broker.data
        assert data.is_dir()
    assert not data.exists()
    assert threading.active_count() <= threads


def test_a_restart_keeps_address_and_records() -> None:
    with Broker() as broker:
        broker.create_topic("t")
        send(broker.bootstrap, "t", b"kept")
        before = (broker.bootstrap, broker.data)
        broker.restart()
        assert (broker.bootstrap, broker.data) == before
        assert receive(broker.bootstrap, "t") == b"kept"


def test_data_of_the_callers_own_is_left_alone(tmp_path: Path) -> None:
    with Broker(data=tmp_path / "d") as broker:
        broker.create_topic("t")
    assert (tmp_path / "d" / "t-0").is_dir()
    with Broker(data=tmp_path / "d") as broker, pytest.raises(ClientError, match="exists"):
        broker.create_topic("t")


def test_settings_have_kafkas_names() -> None:
    with Broker(config={"auto.create.topics.enable": False, "num.partitions": 2}) as broker:
        broker.create_topic("t", partitions=3, retention_ms=1000)
    with pytest.raises(ConfigError, match=r"no\.such"), Broker({"no.such": 1}):
        pass


def test_what_keeps_a_broker_from_starting_is_raised_here(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Exception, match="file"):
        Broker(data=tmp_path / "file").start()


def test_two_brokers_do_not_meet() -> None:
    with Broker() as one, Broker() as two:
        one.create_topic("t")
        two.create_topic("t")
        assert one.bootstrap != two.bootstrap


def test_a_broker_that_does_not_run_says_so() -> None:
    with pytest.raises(RuntimeError, match="`with` block"):
        _ = Broker().bootstrap
    Broker().stop()


def test_a_task_left_behind_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[asyncio.Task[None]] = []

    async def stop(self: Server) -> None:
        left.append(asyncio.create_task(asyncio.sleep(60)))
        await original(self)

    original = Server.stop
    monkeypatch.setattr(Server, "stop", stop)
    broker = Broker().start()
    with pytest.raises(AssertionError, match=r"left tasks behind: .*sleep"):
        broker.stop()


def test_fixtures_are_there_without_asking(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        seen = []

        def test_a(headrace_broker, headrace_topic):
            seen.append((headrace_broker.bootstrap, headrace_topic))

        def test_b(headrace_broker, headrace_topic):
            seen.append((headrace_broker.bootstrap, headrace_topic))
            assert seen[0][0] == seen[1][0]
            assert seen[0][1] != seen[1][1]
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=2)


def test_fixtures_take_settings_topics_registry_and_gateway(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def headrace_options():
            return {"config": {"auto.create.topics.enable": False}, "topics": {"orders": 3}}
        """
    )
    pytester.makepyfile(
        """
        import json, urllib.request
        import pytest
        from confluent_kafka.admin import AdminClient

        def partitions(bootstrap, topic):
            return len(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=60).topics[topic].partitions)

        def asked(url):
            with urllib.request.urlopen(url, timeout=60) as answer:
                return json.load(answer)

        def test_topics(headrace_broker):
            assert partitions(headrace_broker.bootstrap, "orders") == 3

        @pytest.mark.headrace_topic(partitions=2, cleanup_policy="compact")
        def test_marked_topic(headrace_broker, headrace_topic):
            assert partitions(headrace_broker.bootstrap, headrace_topic) == 2

        def test_gateway(headrace_gateway, headrace_registry, headrace_topic):
            assert asked(headrace_gateway + "/api/v1/topics/" + headrace_topic)["name"] == headrace_topic
            assert asked(headrace_registry + "/subjects") == []

        @pytest.mark.parametrize("headrace_broker", [{"topics": ["mine"], "registry": True}], indirect=True)
        def test_of_its_own(headrace_broker):
            assert partitions(headrace_broker.bootstrap, "mine") == 1
            assert asked(headrace_broker.registry_url + "/subjects") == []

        def test_made(make_headrace_broker):
            one, two = make_headrace_broker(topics=["a"]), make_headrace_broker({"num.partitions": 5}, topics=["b"])
            assert one.bootstrap != two.bootstrap
            assert partitions(two.bootstrap, "b") == 1
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--strict-markers")
    result.assert_outcomes(passed=5)


def test_the_first_member_of_a_group_waits_for_no_other() -> None:
    with Broker() as broker:
        resource = ConfigResource(ConfigResource.Type.BROKER, "1")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        settings = admin.describe_configs([resource])[resource].result(60)
    assert int(settings["group.initial.rebalance.delay.ms"].value) <= 500


def test_a_gateway_stops_with_its_broker_and_outlives_a_restart_of_it() -> None:
    threads = threading.active_count()
    with Broker(topics=["orders"], gateway=True) as broker:
        url = broker.http_url
        broker.restart()
        assert broker.http_url == url
        request = urllib.request.Request(f"{url}/topics/orders", data=b'{"total": 3}', method="POST")
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["offset"] == 0
    assert threading.active_count() <= threads
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=60)


def test_a_broker_is_imported_without_what_its_library_loads_on_the_side() -> None:
    code = "import sys; from headrace.testing import Broker; print('hypothesis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_the_plugin_costs_nothing_until_it_is_used() -> None:
    code = (
        "import sys, pytest; before = set(sys.modules); import headrace.testing.plugin;"
        "print(sorted(set(sys.modules) - before))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert ast.literal_eval(output) == ["headrace", "headrace.testing", "headrace.testing.plugin"]


@pytest.mark.parametrize("name", ["test_x", "test_x[a/b é]", "[]", "x" * 500])
def test_topic_names_are_valid(name: str) -> None:
    made = topic_name(name, 3)
    assert made.endswith("-3")
    assert len(made) <= 249
    assert all(c.isascii() and (c.isalnum() or c in "._-") for c in made)


def test_logs_without_their_metadata_are_not_touched(tmp_path: Path) -> None:
    metadata, saved = tmp_path / "metadata.db", tmp_path / "saved.db"
    with Broker(data=tmp_path) as broker:
        broker.create_topic("kept")
    metadata.rename(saved)
    with pytest.raises(StoreError, match=r"metadata\.db is gone"):
        Broker(data=tmp_path).start()
    assert not metadata.exists()
    saved.rename(metadata)
    with Broker(data=tmp_path):
        assert (tmp_path / "kept-0").is_dir()
