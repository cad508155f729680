"""`headrace cluster backup` and `restore` of a lone broker, and what they refuse."""

import stat
from pathlib import Path

import pytest

from headrace.testing import Broker
from tests.support.cli import Run
from tests.support.process import free_port

pytestmark = pytest.mark.slow


def create_topic(run: Run, bootstrap: str, name: str) -> None:
    assert run("topic", "create", name, "-b", bootstrap).exit_code == 0


def test_a_lone_broker_gets_its_topics_back(run: Run, tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "lone.backup"
    with Broker(data=data) as broker:
        create_topic(run, broker.bootstrap, "orders")
        assert run("produce", "orders", "-b", broker.bootstrap, stdin="one\n").exit_code == 0
        refused = run("cluster", "backup", str(file), "--data", str(data))
        assert refused.exit_code == 1
        assert "stop it first" in refused.stderr
    assert run("cluster", "backup", str(file), "--data", str(data)).exit_code == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "--force" in run("cluster", "backup", str(file), "--data", str(data)).stderr
    for left in data.glob("metadata.db*"):
        left.unlink()
    planned = run("cluster", "restore", str(file), "--data", str(data), "--dry-run")
    assert "topic orders: 1 partitions" in planned.stdout
    assert not (data / "metadata.db").exists()
    assert run("cluster", "restore", str(file), "--data", str(data)).exit_code == 0
    with Broker(data=data) as broker:
        assert "one" in run("consume", "orders", "-b", broker.bootstrap, "--from", "beginning").stdout.splitlines()


def test_a_directory_of_another_cluster_is_refused(run: Run, tmp_path: Path) -> None:
    one, other, file = tmp_path / "one", tmp_path / "other", tmp_path / "one.backup"
    for data in (one, other):
        with Broker(data=data):
            pass
    assert run("cluster", "backup", str(file), "--data", str(one), "--json").exit_code == 0
    refused = run("cluster", "restore", str(file), "--data", str(other), "--force")
    assert refused.exit_code == 1
    assert "belongs to cluster" in refused.stderr
    assert "not empty" in run("cluster", "restore", str(file), "--data", str(one)).stderr


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["backup", "FILE"], 2, "--store"),
        (["backup", "FILE", "--store", "zookeeper://a:1", "--data", "DIR"], 2, "--store"),
        (["backup", "FILE", "--store", "http://a:1"], 2, "zookeeper://"),
        (["backup", "FILE", "--data", "DIR"], 1, "is it a data directory"),
        (["backup", "FILE", "--data", "DIR/none"], 1, "no data directory"),
        (["restore", "FILE", "--data", "DIR"], 1, "No such file"),
        (["restore", "DIR/junk", "--data", "DIR"], 1, "not a backup"),
    ],
)
def test_what_makes_no_sense_is_refused(run: Run, tmp_path: Path, arguments: list[str], code: int, reason: str) -> None:
    (tmp_path / "junk").write_bytes(b"junk")
    names = {"FILE": str(tmp_path / "x.backup")}
    given = [names.get(word, word.replace("DIR", str(tmp_path))) for word in arguments]
    refused = run("cluster", *given)
    assert (refused.exit_code, reason in refused.stderr) == (code, True), refused.stderr


def test_a_zookeeper_that_cannot_be_reached_is_named(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cli.cluster.backup._PATIENCE_SECONDS", 0.3)
    place = f"zookeeper://127.0.0.1:{free_port()}/orders"
    refused = run("cluster", "backup", str(tmp_path / "x"), "--store", place)
    assert refused.exit_code == 3
    assert place in refused.stderr
