"""Gateways beside a cluster of three: the documents' examples as they stand, and what is killed under load."""

import http.client
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.gateways import Example, GatewayProcess, Shell, examples, matches
from tests.support.process import ClusterProcesses, wait_for

pytestmark = pytest.mark.slow

WORKERS = 8
PATIENCE = 60.0
ADDRESS = "http://127.0.0.1:8080"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with ClusterProcesses(tmp_path_factory.mktemp("cluster"), 3, settings=settings) as running:
        yield running


@pytest.fixture
def gateways(cluster: ClusterProcesses, tmp_path: Path) -> Iterator[list[GatewayProcess]]:
    options = ("--push-allow", "127.0.0.0/8")
    with (
        GatewayProcess(cluster.bootstrap, tmp_path / "one.log", *options) as one,
        GatewayProcess(cluster.bootstrap, tmp_path / "two.log", *options) as two,
    ):
        yield [one, two]


def ask(url: str, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    """One request on a connection of its own."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=60)
    try:
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        more = {} if isinstance(body, bytes | None) else {"Content-Type": "application/json"}
        connection.request(method, path, data, {**more, **(headers or {})})
        answer = connection.getresponse()
        content = answer.read()
        return answer.status, json.loads(content) if content else None
    finally:
        connection.close()


def test_the_examples_of_the_documents_run_as_they_stand_though_a_gateway_and_a_broker_are_killed(
    cluster: ClusterProcesses, gateways: list[GatewayProcess]
) -> None:
    shell = Shell()
    living = itertools.cycle(gateways)
    documents = ("docs/registry.md", "docs/http.md", "README.md")
    found = [example for document in documents for example in examples(document)]
    assert len(found) > 40
    try:
        for number, example in enumerate(found):
            if number == len(found) // 3:
                gateways[0].kill()
                cluster[2].kill()
                living = itertools.cycle(gateways[1:])
            printed = shown(shell, example, next(living).url)
            assert matches(example.expected, printed), f"{example.document}: {example.command}\n{printed}"
    finally:
        if not cluster[2].is_running:
            cluster[2].start()


def shown(shell: Shell, example: Example, url: str) -> str:
    """What a command prints. One that asks only is asked again for a while: a busy machine may have nothing yet."""
    command = example.command.replace(ADDRESS, url)
    printed = shell.run(command)
    deadline = time.monotonic() + PATIENCE
    while not matches(example.expected, printed) and " -X " not in command and time.monotonic() < deadline:
        printed = shell.run(command)
    return printed


class Publishers:
    """Callers that publish under keys of their own and repeat, at another gateway, what was not answered."""

    def __init__(self, gateways: list[GatewayProcess], topic: str) -> None:
        self._gateways = gateways
        self._topic = topic
        self._numbers = itertools.count()
        self.is_over = False
        self.answered: dict[str, tuple[int, int]] = {}

    def run(self) -> None:
        while not self.is_over:
            key = f"key-{next(self._numbers)}"
            self.answered[key] = self._publish(key)

    def _publish(self, key: str) -> tuple[int, int]:
        for attempt in itertools.count(hash(key)):
            gateway = self._gateways[attempt % len(self._gateways)]
            try:
                headers = {"Idempotency-Key": key}
                status, told = ask(gateway.url, "POST", f"/topics/{self._topic}", key.encode(), headers)
            except (OSError, http.client.HTTPException):
                time.sleep(0.05)
                continue
            if status == 200:
                return told["partition"], told["offset"]
            assert status == 503, told
            time.sleep(0.05)
        raise AssertionError("no attempt is the last")


def stored(url: str, topic: str, partitions: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """Every record of a topic: its value, and where it is."""
    for partition in range(partitions):
        offset = 0
        while True:
            path = f"/api/v1/topics/{topic}/partitions/{partition}/messages?offset={offset}&limit=10000&format=text"
            status, page = ask(url, "GET", path)
            if status == 503:  # a partition may be without a leader for a moment
                time.sleep(0.05)
                continue
            assert status == 200, page
            yield from ((r["value"], (partition, r["offset"])) for r in page["messages"])
            if page["next_offset"] >= page["high_watermark"]:
                break
            offset = page["next_offset"]


def test_every_200_is_in_the_log_once_though_a_gateway_and_a_broker_are_killed(
    cluster: ClusterProcesses, gateways: list[GatewayProcess]
) -> None:
    status, made = ask(gateways[0].url, "POST", "/api/v1/topics", {"name": "kept", "partitions": 6})
    assert status == 201, made
    publishers = Publishers(gateways, "kept")
    with ThreadPoolExecutor(WORKERS) as pool:
        running = [pool.submit(publishers.run) for _ in range(WORKERS)]

        def more_than(count: int) -> None:
            wait_for(f"{count} are answered", lambda: len(publishers.answered) > count)

        try:
            more_than(200)
            gateways[0].kill()
            more_than(len(publishers.answered) + 200)
            cluster[2].kill()
            more_than(len(publishers.answered) + 200)
            gateways[0].start()
            cluster[2].start()
            more_than(len(publishers.answered) + 200)
        finally:
            publishers.is_over = True
        for each in running:
            each.result()
    found = list(stored(gateways[1].url, "kept", 6))
    counts = Counter(value for value, _ in found)
    assert [key for key in publishers.answered if counts[key] != 1] == []
    assert dict(found) == {**dict(found), **publishers.answered}


class Hook:
    """A webhook receiver that is sometimes unwell."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self._count = itertools.count(1)
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                is_good = next(hook._count) % 7 != 0
                if is_good:
                    hook.taken.append(body["value"])
                self.send_response(204 if is_good else 500)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def test_another_gateway_takes_over_the_deliveries_of_one_that_dies(gateways: list[GatewayProcess]) -> None:
    url = gateways[0].url
    assert ask(url, "POST", "/api/v1/topics", {"name": "handed", "partitions": 1})[0] == 201
    hook = Hook()
    try:
        wanted = {"topic": "handed", "callback_url": hook.url, "from": "earliest"}
        status, made = ask(
            url, "POST", "/api/v1/subscriptions", {**wanted, "backoff": {"initial_ms": 10, "max_ms": 50}}
        )
        assert status == 201, made
        path = f"/api/v1/subscriptions/{made['id']}"
        publish = {"messages": [{"value": number} for number in range(100)]}
        assert ask(url, "POST", "/topics/handed", publish)[0] == 200
        wait_for("the first hundred", lambda: 99 in hook.taken)
        wait_for("its owner is told", lambda: bool(ask(url, "GET", f"{path}/status")[1]["owner"]))
        owner = str(ask(url, "GET", f"{path}/status")[1]["owner"])
        (dying,) = [gateway for gateway in gateways if owner.endswith(f"-{gateway.pid}")]
        (living,) = [gateway for gateway in gateways if gateway is not dying]
        assert ask(living.url, "GET", path)[1]["state"] == "active"
        dying.kill()
        publish = {"messages": [{"value": number} for number in range(100, 200)]}
        assert ask(living.url, "POST", "/topics/handed", publish)[0] == 200
        wait_for("the second hundred", lambda: 199 in hook.taken)
        assert list(dict.fromkeys(hook.taken)) == list(range(200))
        assert ask(living.url, "DELETE", path)[0] == 204
    finally:
        hook.close()
