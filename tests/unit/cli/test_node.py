"""`headrace node`: what its workers are, and how its control socket answers."""

import asyncio
import socket
import stat
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.console import Failure
from headrace.cli.node.control import ControlError, ask, control_socket
from headrace.cli.node.plan import plan_workers
from headrace.config import BrokerConfig
from tests.support.cli import Run

STORE = {"zookeeper.connect": "zk1:2181,zk2:2181/orders"}


def config(**given: str) -> BrokerConfig:
    return BrokerConfig.parse({**STORE, **{name.replace("_", "."): value for name, value in given.items()}})


def test_workers_have_numbers_ports_and_directories_of_their_own() -> None:
    first = config(node_id="101", listeners="PLAINTEXT://10.0.0.1:9092", log_dirs="/var/lib/headrace")
    workers = plan_workers(first, 3, "machine-1")
    assert [w.broker_id for w in workers] == [101, 102, 103]
    assert [w.settings["listeners"] for w in workers] == [f"PLAINTEXT://10.0.0.1:{p}" for p in (9092, 9093, 9094)]
    assert [w.settings["log.dirs"] for w in workers] == [f"/var/lib/headrace/broker-{n}" for n in (101, 102, 103)]


def test_each_listener_of_a_worker_has_the_port_after_that_of_the_one_before() -> None:
    two = {"listeners": "SASL_SSL://0.0.0.0:9092,PLAINTEXT://127.0.0.1:9192"}
    told = {"advertised_listeners": "SASL_SSL://h:9092,PLAINTEXT://127.0.0.1:9192"}
    workers = plan_workers(config(**two, **told), 2, "m")
    assert [w.settings["listeners"] for w in workers] == [
        "SASL_SSL://0.0.0.0:9092,PLAINTEXT://127.0.0.1:9192",
        "SASL_SSL://0.0.0.0:9093,PLAINTEXT://127.0.0.1:9193",
    ]
    assert workers[1].settings["advertised.listeners"] == "SASL_SSL://h:9093,PLAINTEXT://127.0.0.1:9193"
    near = config(listeners="SASL_SSL://h:9092,PLAINTEXT://127.0.0.1:9093")
    with pytest.raises(Failure, match="let ports be 2 apart"):
        plan_workers(near, 2, "m")


def test_the_rack_of_all_workers_is_their_machine_unless_it_is_given() -> None:
    assert {w.settings["broker.rack"] for w in plan_workers(config(), 4, "machine-1")} == {"machine-1"}
    assert {w.settings["broker.rack"] for w in plan_workers(config(broker_rack="eu-1a"), 4, "m")} == {"eu-1a"}


def test_what_clients_are_told_follows_the_ports_too() -> None:
    first = config(listeners="PLAINTEXT://0.0.0.0:9092", advertised_listeners="PLAINTEXT://[fd00::1]:19092")
    told = [w.settings["advertised.listeners"] for w in plan_workers(first, 2, "m")]
    assert told == ["PLAINTEXT://[fd00::1]:19092", "PLAINTEXT://[fd00::1]:19093"]


def test_each_worker_serves_metrics_at_a_port_of_its_own() -> None:
    def listeners(given: str) -> list[str | None]:
        first = BrokerConfig.parse({**STORE, "headrace.metrics.listener": given})
        return [w.settings.get("headrace.metrics.listener") for w in plan_workers(first, 2, "m")]

    assert listeners("0.0.0.0:9644") == ["0.0.0.0:9644", "0.0.0.0:9645"]
    assert listeners("127.0.0.1:0") == ["127.0.0.1:0", "127.0.0.1:0"]
    assert listeners("auto") == listeners("off") == [None, None]
    with pytest.raises(Failure, match="--metrics: 2 workers from port 65535"):
        listeners("0.0.0.0:65535")


def test_a_node_without_a_store_or_a_port_is_refused() -> None:
    with pytest.raises(Failure, match="--store zookeeper"):
        plan_workers(BrokerConfig.parse({}), 2, "m")
    with pytest.raises(Failure, match="a port that stays"):
        plan_workers(config(listeners="PLAINTEXT://127.0.0.1:0"), 2, "m")
    with pytest.raises(Failure, match="ports beyond 65535"):
        plan_workers(config(listeners="PLAINTEXT://127.0.0.1:65535"), 2, "m")


def test_wrong_options_of_a_node_are_told_before_anything_starts(run: Run, tmp_path: Path) -> None:
    refused = run("node", "--workers", "2", "--data", str(tmp_path / "data"))
    assert refused.exit_code == 2
    assert "--store zookeeper://" in refused.stderr
    unknown = run("node", "--store", "zookeeper://localhost:1/x", "--set", "no.such.setting=1")
    assert unknown.exit_code == 2
    assert "no.such.setting" in unknown.stderr
    assert not (tmp_path / "data").exists()


# The control socket


async def answer(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    if asked.get("do") != "describe":
        raise ControlError("it cannot do that")
    return {"workers": []}


def with_node(path: Path, *requests: Mapping[str, Any]) -> list[Any]:
    """What a node answers, or the `Failure` that its client ends with."""

    async def serve() -> list[Any]:
        async with control_socket(path, answer):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            in_thread = asyncio.get_running_loop().run_in_executor
            asking = (in_thread(None, partial(ask, path, request, 30.0)) for request in requests)
            return list(await asyncio.gather(*asking, return_exceptions=True))

    return asyncio.run(serve())


def test_a_node_answers_its_own_user_on_its_socket_and_leaves_none_behind(tmp_path: Path) -> None:
    path = tmp_path / "node.sock"
    described, refused = with_node(path, {"do": "describe"}, {"do": "explode"})
    assert described == {"workers": []}
    assert isinstance(refused, Failure)
    assert "it cannot do that" in refused.message
    assert not path.exists()


def test_the_socket_of_a_node_that_was_killed_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "node.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert with_node(path, {"do": "describe"}) == [{"workers": []}]


def test_the_socket_of_a_node_that_lives_and_other_files_are_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "node.sock"
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(path))
        living.listen()
        with pytest.raises(Failure, match="another node runs"):
            with_node(path)
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(Failure, match="is no socket"):
        with_node(file)
    assert file.read_text() == "mine"
    with pytest.raises(Failure, match="too long"):
        with_node(tmp_path / ("long" * 30))


def test_where_no_node_answers_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="no node answers at"):
        ask(tmp_path / "node.sock", {"do": "describe"}, 1.0)
