"""The monitoring port of a broker: /metrics for Prometheus, /healthz and /readyz for probes.

It listens before the broker serves, so that probes see a start that takes long: /healthz answers as long as the event
loop runs, /readyz says no until the broker is ready, and again from when it begins to stop.
"""

import asyncio
import json
from http import HTTPStatus
from time import perf_counter
from typing import Any, Final

import structlog

from headrace.config import BrokerConfig, ConfigError
from headrace.config.metrics import METRICS_AUTO, METRICS_LISTENER, METRICS_OFF
from headrace.metrics.exposition import Snapshot, gzipped, put_process, render
from headrace.net.address import Address, parse_address
from headrace.net.tasks import Tasks

from .collector import BrokerCollector, sampled, starting_snapshot
from .disk_trend import SAMPLE_SECONDS
from .endpoint import JSON, Headers, HttpAnswer, MetricsEndpoint
from .group_lag import ROUND_SECONDS

LOOPBACK: Final = "127.0.0.1"
PORT_DISTANCE: Final = 552
"""From the port for clients to the one for monitoring: 9644 for 9092."""
_SMALLEST_GZIPPED: Final = 1024

log = structlog.get_logger(__name__)


def metrics_address(config: BrokerConfig) -> Address | None:
    """Where to listen for scrapes and probes; None for nowhere."""
    value = str(config[METRICS_LISTENER])
    if value == METRICS_OFF:
        return None
    if value != METRICS_AUTO:
        return parse_address(value)
    port = config.listener.port
    return Address(LOOPBACK, port + PORT_DISTANCE if 0 < port <= 65535 - PORT_DISTANCE else 0)


class Monitor:
    """Listens, and watches what is only looked at from time to time."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._tasks = Tasks()
        self._collector: BrokerCollector | None = None
        """None before the broker serves."""
        self._is_stopping = False
        self._scraping = asyncio.Lock()
        self._scrape_seconds = 0.0
        self._endpoint = MetricsEndpoint(
            {"/metrics": self._metrics, "/healthz": self._healthz, "/readyz": self._readyz}
        )
        self.address: Address | None = None
        """Where it listens; None for nowhere."""

    async def start(self) -> None:
        """Listen. `ConfigError` where the address that was asked for cannot be had; one that nobody asked for is
        done without."""
        address = metrics_address(self._config)
        if address is None:
            return
        try:
            port = await self._endpoint.start(address.host, address.port)
        except OSError as error:
            if self._config[METRICS_LISTENER] != METRICS_AUTO:
                raise ConfigError(f"{METRICS_LISTENER} {address}: cannot listen there: {error}") from error
            log.warning("metrics are not served", address=str(address), reason=str(error), setting=METRICS_LISTENER)
            return
        self.address = Address(address.host, port)

    def serving(self, collector: BrokerCollector) -> None:
        """The broker serves now."""
        self._collector = collector
        watched = collector.watched
        self._tasks.keep("loop delay", watched.loop_delay.probe)
        if self.address is not None:
            log.info("metrics served", url=f"http://{self.address}/metrics")
            watched.gc_pauses.listen()
            self._tasks.keep("disk trend", lambda: sampled(watched, SAMPLE_SECONDS))
            self._tasks.every(ROUND_SECONDS, "group lag", watched.group_lag.look)

    def stopping(self) -> None:
        """The broker is about to stop: it wants no more traffic."""
        self._is_stopping = True

    async def close(self) -> None:
        """Listen no more."""
        if self._collector is not None:
            self._collector.watched.gc_pauses.close()
        await self._endpoint.close()
        await self._tasks.close()

    async def _healthz(self, _headers: Headers) -> HttpAnswer:
        return HttpAnswer(b"ok\n")

    async def _readyz(self, _headers: Headers) -> HttpAnswer:
        if self._collector is None or self._is_stopping:
            status = "starting" if self._collector is None else "stopping"
            return _json({"ready": False, "status": status, "problems": []}, HTTPStatus.SERVICE_UNAVAILABLE)
        health = self._collector.watched.health
        report = health.latest or await health.report()
        return _json(report.to_json(), HTTPStatus.OK if report.ready else HTTPStatus.SERVICE_UNAVAILABLE)

    async def _metrics(self, headers: Headers) -> HttpAnswer:
        """One scrape at a time: who scrapes twice as often must not make the broker twice as busy at once."""
        async with self._scraping:
            began = perf_counter()
            snapshot = starting_snapshot() if self._collector is None else await self._collector.collect()
            snapshot.put("headrace_metrics_scrape_seconds", self._scrape_seconds)
            accept, is_gzipped = headers.get("accept", ""), "gzip" in headers.get("accept-encoding", "")
            answer = await asyncio.to_thread(_rendered, snapshot, accept, is_gzipped)
            self._scrape_seconds = perf_counter() - began
            return answer


def _rendered(snapshot: Snapshot, accept: str, is_gzipped: bool) -> HttpAnswer:
    put_process(snapshot)
    body, content_type = render(snapshot, accept)
    if is_gzipped and len(body) >= _SMALLEST_GZIPPED:
        return HttpAnswer(gzipped(body), content_type, encoding="gzip")
    return HttpAnswer(body, content_type)


def _json(values: dict[str, Any], status: HTTPStatus) -> HttpAnswer:
    return HttpAnswer(json.dumps(values).encode() + b"\n", JSON, status)
