"""`headrace zookeeper`: what it needs, and as a process."""

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path

import psutil
import pytest
from kazoo.client import KazooClient

from headrace.cli import zookeeper
from headrace.cli.console import Failure
from headrace.cli.zookeeper import Ensemble, ZooKeeperServer, find_jars, find_java
from tests.support.cli import Run, command
from tests.support.process import wait_for


def test_a_machine_without_java_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(Failure, match="install Java 17 or set JAVA_HOME"):
        find_java()


def test_java_is_taken_from_its_home_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.touch(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == str(java)


def test_without_pyspark_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, run: Run, tmp_path: Path) -> None:
    monkeypatch.setattr(zookeeper, "find_spec", lambda _: None)
    result = run("zookeeper", "--data", str(tmp_path))
    assert result.exit_code == 1
    assert 'pip install "headrace[spark]"' in result.stderr


def test_pyspark_without_its_jars_is_named_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spec = ModuleSpec("pyspark", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(zookeeper, "find_spec", lambda _: spec)
    with pytest.raises(Failure, match="zookeeper-3 is not there"):
        find_jars()


@pytest.mark.slow
def test_a_server_lives_through_a_kill_with_all_it_knew(tmp_path: Path) -> None:
    with ZooKeeperServer(tmp_path) as server:
        assert server.mode() == "standalone"
        assert server.ask("ruok") == "imok"
        _create(server.address, "/kept")
        server.kill()
        assert not server.is_running()
        server.start()
        assert _exists(server.address, "/kept")
        pid = server.pid
    assert not psutil.pid_exists(pid)


@pytest.mark.slow
def test_three_servers_have_one_leader(tmp_path: Path) -> None:
    with Ensemble(tmp_path) as ensemble:
        wait_for(
            "one leads and two follow",
            lambda: sorted(server.mode() for server in ensemble.servers) == ["follower", "follower", "leader"],
        )
        _create(ensemble.servers[0].address, "/everywhere")
        ensemble.leader().kill()
        assert _exists(ensemble.leader().address, "/everywhere")


@pytest.mark.slow
def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with (
        ZooKeeperServer(tmp_path / "one") as server,
        pytest.raises(Failure, match=f"{server.address}: another program listens there"),
    ):
        ZooKeeperServer(tmp_path / "two", server.port).start()


@pytest.mark.slow
def test_the_command_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("zookeeper", "--port", "0", "--data", str(tmp_path), "--json"), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    address = ready["zookeeper"].removeprefix("zookeeper://")
    _create(address, "/a")
    java = psutil.Process(process.pid).children()
    assert len(java) == 1
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert not java[0].is_running()


@pytest.mark.slow
def test_servers_die_with_who_started_them(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, headrace.cli.zookeeper as z; s = z.ZooKeeperServer(pathlib.Path(sys.argv[1]));"
        "s.start(); print(s.pid, flush=True); input()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    java = psutil.Process(int(process.stdout.readline()))
    process.kill()
    process.communicate(timeout=60)
    psutil.wait_procs([java], timeout=60)
    assert not java.is_running()


def _create(address: str, path: str) -> None:
    _with_client(address, lambda client: client.create(path))


def _exists(address: str, path: str) -> bool:
    return _with_client(address, lambda client: client.exists(path)) is not None


def _with_client(address: str, work: Callable[[KazooClient], object]) -> object:
    client = KazooClient(address)
    client.start(60)
    try:
        return work(client)
    finally:
        client.stop()
        client.close()
