"""`headrace up`, `broker` and `gateway` as processes."""

import json
import re
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from headrace.client.admin import Admin
from tests.support.cli import command
from tests.support.process import free_port, wait_for

pytestmark = pytest.mark.slow


Process = subprocess.Popen[str]
Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a command in an empty directory; whatever is left of it is ended with the test."""
    started: list[Process] = []

    def begin(*arguments: str, prefix: Sequence[str] = ()) -> Process:
        process = subprocess.Popen(
            [*prefix, *command(*arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        for one in _family(process):
            one.kill()
        process.communicate()


def _family(process: Process) -> list[psutil.Process]:
    try:
        parent = psutil.Process(process.pid)
        return [*parent.children(recursive=True), parent]
    except psutil.NoSuchProcess:
        return []


def first_line(process: Process) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def ended(process: Process) -> tuple[int, str]:
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


def addresses(ready: str) -> tuple[str, str]:
    match = re.fullmatch(r"headrace ready kafka=(127\.0\.0\.1:\d+) http=(http://127\.0\.0\.1:\d+)\n", ready)
    assert match is not None, ready
    return match[1], match[2]


def fetch(url: str) -> tuple[int, object]:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_up_serves_both_and_one_signal_stops_all(start: Start, tmp_path: Path) -> None:
    process = start("up", "--kafka-port", "0", "--http-port", "0", "--data", "here", "--set", "num.partitions=3")
    kafka, http = addresses(first_line(process))
    admin = Admin(kafka)
    assert admin.create_topics(["orders"]) == {"orders": None}
    assert admin.partition_numbers("orders") == [0, 1, 2]
    wait_for("the gateway finds the broker", lambda: fetch(f"{http}/health") == (200, {"status": "ok", "brokers": 1}))
    assert (tmp_path / "here" / "orders-0").is_dir()

    children = psutil.Process(process.pid).children()
    words = {word for c in children for word in _words(c)}
    assert {"--id 1", "gateway", "--set group.initial.rebalance.delay.ms=0"} <= words
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    assert (process.returncode, rest) == (0, "")
    assert "Traceback" not in errors
    assert not psutil.wait_procs(children, timeout=60)[1]


def _words(child: psutil.Process) -> list[str]:
    line = child.cmdline()
    return [*line, *(f"{a} {b}" for a, b in pairwise(line))]


def test_up_on_chosen_ports_starts_both_at_once(start: Start, tmp_path: Path) -> None:
    kafka_port, http_port = free_port(), free_port()
    (tmp_path / "own.properties").write_text("group.initial.rebalance.delay.ms=50\n")
    ports = ("--kafka-port", str(kafka_port), "--http-port", str(http_port))
    process = start("up", *ports, "--config", "own.properties", "--json")
    ready = json.loads(first_line(process))
    assert ready == {"ready": True, "kafka": f"127.0.0.1:{kafka_port}", "http": f"http://127.0.0.1:{http_port}"}
    words = {word for c in psutil.Process(process.pid).children() for word in c.cmdline()}
    assert not [word for word in words if "rebalance.delay" in word]  # the file says otherwise
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 0


@pytest.mark.parametrize("victim", ["broker", "gateway"])
def test_a_child_that_dies_takes_the_rest_down(start: Start, victim: str) -> None:
    process = start("up", "--kafka-port", "0", "--http-port", "0")
    first_line(process)
    children = psutil.Process(process.pid).children()
    (target,) = [c for c in children if victim in c.cmdline()]
    target.kill()
    code, errors = ended(process)
    assert code == 1
    assert f"headrace: the {victim} (pid {target.pid}) was ended by SIGKILL; everything was stopped\n" in errors
    assert not psutil.wait_procs(children, timeout=60)[1]


def test_children_end_when_up_is_killed(start: Start) -> None:
    process = start("up", "--kafka-port", "0", "--http-port", "0")
    first_line(process)
    children = psutil.Process(process.pid).children()
    process.kill()
    assert not psutil.wait_procs(children, timeout=60)[1]


def test_up_passes_on_what_its_broker_complains_of(start: Start) -> None:
    code, errors = ended(start("up", "--kafka-port", "0", "--http-port", "0", "--set", "num.partitions=some"))
    assert code == 2
    assert errors.count("\n") == 1
    assert "num.partitions" in errors


def test_a_broker_in_json_says_where_it_serves(start: Start) -> None:
    process = start("broker", "--listen", "127.0.0.1:0", "--data", "d", "--json")
    bootstrap = json.loads(first_line(process))["kafka"]
    assert Admin(bootstrap).list_topics() == []
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 0


def test_settings_come_from_the_file_unless_the_line_says_otherwise(start: Start, tmp_path: Path) -> None:
    (tmp_path / "s.properties").write_text(
        f"node.id=7\nlisteners=PLAINTEXT://127.0.0.1:{free_port()}\nlog.dirs=elsewhere\nnum.partitions=2\n"
    )
    process = start("broker", "--config", "s.properties", "--listen", "127.0.0.1:0", "--set", "num.partitions=5")
    bootstrap = first_line(process).strip().partition("kafka=")[2]
    Admin(bootstrap).create_topics(["t"])
    topic = Admin(bootstrap).describe_topic("t")
    assert (len(topic.partitions), topic.partitions[0].leader) == (5, 7)
    assert (tmp_path / "elsewhere").is_dir()


def test_a_port_in_use_is_named(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        broker, gateway = start("broker", "--listen", address), start("gateway", "--http", address)
        for process, option in ((broker, "--listen"), (gateway, "--http")):
            code, errors = ended(process)
            assert code == 1
            assert errors.startswith(f"headrace: {option} {address}: another program listens there already")
            assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("listen", "reason"),
    [("no-such-host.invalid:0", "is not known here"), ("192.0.2.1:0", "no address of this machine")],
)
def test_a_host_of_another_is_named(start: Start, listen: str, reason: str) -> None:
    code, errors = ended(start("broker", "--listen", listen, "--allow-anonymous"))
    assert (code, errors.count("\n")) == (2, 1)
    assert reason in errors


def test_a_data_directory_has_one_broker(start: Start) -> None:
    first = start("broker", "--listen", "127.0.0.1:0", "--data", "d")
    first_line(first)
    code, errors = ended(start("broker", "--listen", "127.0.0.1:0", "--data", "d"))
    assert code == 1
    assert errors == "headrace: data directory 'd' is in use by another broker; stop that one or choose --data\n"


def test_a_data_directory_of_another_broker_is_refused(start: Start) -> None:
    first = start("broker", "--listen", "127.0.0.1:0", "--data", "d")
    first_line(first)
    first.send_signal(signal.SIGTERM)
    assert ended(first)[0] == 0
    code, errors = ended(start("broker", "--id", "2", "--listen", "127.0.0.1:0", "--data", "d"))
    assert code == 1
    assert "belongs to broker 1" in errors
    assert "Traceback" not in errors


def test_a_file_is_no_data_directory(start: Start, tmp_path: Path) -> None:
    (tmp_path / "d").touch()
    code, errors = ended(start("broker", "--listen", "127.0.0.1:0", "--data", "d"))
    assert (code, errors.count("\n")) == (1, 1)
    assert errors.startswith("headrace: data directory 'd' cannot be used")


def test_a_directory_that_cannot_be_made_is_named(start: Start) -> None:
    code, errors = ended(start("broker", "--listen", "127.0.0.1:0", "--data", "/proc/headrace"))
    assert (code, errors.count("\n")) == (1, 1)
    assert "/proc/headrace" in errors


def test_a_gateway_without_a_cluster_says_so(start: Start) -> None:
    process = start("gateway", "--bootstrap", f"127.0.0.1:{free_port()}", "--http", "127.0.0.1:0")
    url = first_line(process).strip().partition("http=")[2]
    assert fetch(f"{url}/health") == (503, {"status": "unavailable", "brokers": 0})
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (0, "")


def limited(options: str) -> tuple[str, ...]:
    """The words before a command by which it runs with this limit of open files."""
    return ("bash", "-c", f'ulimit {options}; exec "$@"', "bash")


def test_a_broker_raises_the_soft_limit_of_open_files(start: Start) -> None:
    process = start("broker", "--listen", "127.0.0.1:0", "--metrics", "off", prefix=limited("-Sn 256"))
    assert first_line(process).startswith("headrace ready")
    soft, hard = psutil.Process(process.pid).rlimit(psutil.RLIMIT_NOFILE)
    assert soft == hard > 256


def test_a_broker_that_may_open_too_few_files_for_many_clients_says_how_many_it_needs(start: Start) -> None:
    process = start("broker", "--listen", "127.0.0.1:0", "--metrics", "off", prefix=limited("-n 256"))
    assert first_line(process).startswith("headrace ready")
    assert process.stderr is not None
    line = next(line for line in process.stderr if "file descriptors short" in line)
    assert "256 files may be open, 1024 are needed" in line


def test_a_broker_that_may_open_too_few_files_to_live_does_not_start(start: Start) -> None:
    code, errors = ended(start("broker", "--listen", "127.0.0.1:0", prefix=limited("-n 100")))
    assert (code, errors.count("\n")) == (1, 1)
    assert "only 100 files may be open (ulimit -Hn, LimitNOFILE= in systemd): a broker needs 128 to start" in errors
