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

from headrace.cli import zookeeper_jars
from headrace.cli.console import Failure
from headrace.cli.zookeeper import Ensemble, ZooKeeperServer, find_java
from headrace.cli.zookeeper_jars import find_jars
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


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any ZooKeeper, and a directory for one."""
    monkeypatch.delenv("ZOOKEEPER_HOME", raising=False)
    monkeypatch.setattr(zookeeper_jars, "find_spec", lambda _: None)
    monkeypatch.setattr(zookeeper_jars, "DEBIAN", tmp_path / "debian")
    return tmp_path


def _write_jars(directory: Path, *names: str) -> list[Path]:
    directory.mkdir(parents=True)
    files = [directory / f"{name}.jar" for name in names]
    for file in files:
        file.touch()
    return files


NEEDED = ("zookeeper-3.9.5", "zookeeper-jute-3.9.5", "slf4j-api-2.0.17", "metrics-core-4.2.37", "snappy-java-1.1.10")


@pytest.mark.parametrize("asked", [("zookeeper",), ("up", "--brokers", "3", "--kafka-port", "0")])
def test_without_a_zookeeper_one_line_names_every_way_to_one(bare: Path, run: Run, asked: tuple[str, ...]) -> None:
    result = run(*asked, "--data", str(bare / "d"))
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1
    for way in ('pip install "headrace[zookeeper]"', "apt install zookeeper", "ZOOKEEPER_HOME", "--store zookeeper://"):
        assert way in result.stderr


def test_jars_are_taken_from_the_extra_of_their_own_before_spark(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    homes = {name: bare / name for name in ("headrace_zookeeper", "pyspark")}
    specs = {name: ModuleSpec(name, None, origin=str(home / "__init__.py")) for name, home in homes.items()}
    monkeypatch.setattr(zookeeper_jars, "find_spec", specs.get)
    spark = _write_jars(
        homes["pyspark"] / "jars", *NEEDED, "log4j-slf4j2-impl-2.25", "log4j-api-2.25", "log4j-core-2.25"
    )
    assert find_jars() == spark
    own = _write_jars(homes["headrace_zookeeper"] / "jars", *NEEDED, "slf4j-simple-2.0.17")
    assert find_jars() == own


def test_debians_jars_have_no_version_in_their_names(bare: Path) -> None:
    names = ("zookeeper", "zookeeper-jute", "slf4j-api", "metrics-core", "snappy-java", "slf4j-simple")
    assert find_jars_of(bare / "debian", *names, "zookeeper-contrib-loggraph", "zookeeper-it") == list(names)


def find_jars_of(directory: Path, *names: str) -> list[str]:
    _write_jars(directory, *names)
    return [jar.stem for jar in find_jars()]


def test_an_unpacked_release_comes_first_and_is_told_when_it_is_none(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZOOKEEPER_HOME", str(bare / "apache-zookeeper"))
    with pytest.raises(Failure, match=r"there is no ZooKeeper in .*apache-zookeeper/lib"):
        find_jars()
    jars = _write_jars(
        bare / "apache-zookeeper" / "lib", *NEEDED, "logback-classic-1.3", "logback-core-1.3", "netty-4.1"
    )
    assert find_jars() == [bare / "apache-zookeeper" / "conf", *jars[:-1]]


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
