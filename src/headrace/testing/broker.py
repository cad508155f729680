"""A broker inside the process of a test.

with Broker(topics={"orders": 3}) as broker:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
"""

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import structlog
import uvloop

from headrace.cli.lean import lean_imports

with lean_imports("hypothesis"):  # which the protocol's library loads wherever it is installed: 0.3 s of a test run
    from headrace.client.admin import Admin
    from headrace.config import BrokerConfig, ListenerAddress
    from headrace.config.listeners import read_listeners
    from headrace.net.ports import HeldPort
    from headrace.server.broker import Broker as Server

if TYPE_CHECKING:
    from .gateway import Gateway

_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 60.0
_ADMIN_SECONDS: Final = 60.0
DEFAULTS: Final = {"listeners": "PLAINTEXT://127.0.0.1:0", "group.initial.rebalance.delay.ms": "0"}
"""Settings that differ from those of `headrace broker`: nobody waits 3 s for the other members of a group."""


class Broker:
    """A broker on a free port of 127.0.0.1, in a thread with its own event loop.

    `config` has settings by Kafka's names. Without `data` the directory is a new one, removed by `stop`. `topics` are
    made at the start: names, or names with their numbers of partitions. With `gateway` or `registry` HTTP and
    the schema registry are served beside the broker: `http_url`, `registry_url`; the first use starts them, too.
    """

    def __init__(
        self,
        config: Mapping[str, object] | None = None,
        data: str | Path | None = None,
        *,
        topics: Mapping[str, int] | Iterable[str] = (),
        gateway: bool = False,
        registry: bool = False,
    ) -> None:
        self._settings = {**DEFAULTS, **{k: _text(v) for k, v in (config or {}).items()}}
        self._topics = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, 1)
        self._wants_gateway = gateway or registry
        self._gateway: Gateway | None = None
        log_through_logging()
        self._given_data = None if data is None else Path(data)
        self._data: Path | None = None
        self._ports: dict[str, HeldPort] = {}
        """Those that it holds, by listener."""
        self._run: _Run | None = None

    @property
    def bootstrap(self) -> str:
        """Where clients connect; the same after a restart."""
        return self._running().bootstrap

    @property
    def data(self) -> Path:
        """The data directory."""
        if self._data is None:
            raise RuntimeError("the broker was not started; use it in a `with` block or call start()")
        return self._data

    @property
    def http_url(self) -> str:
        """Where the gateway serves HTTP."""
        self._running()
        if self._gateway is None:
            from .gateway import Gateway

            self._gateway = Gateway(self.bootstrap).start()
        return self._gateway.url

    @property
    def registry_url(self) -> str:
        """Where the schema registry is, for `schema.registry.url`."""
        return self.http_url

    def start(self) -> Self:
        """Serve; raises what the broker raised if it cannot."""
        if self._run is not None:
            raise RuntimeError("the broker runs already")
        self._start_serving()
        try:
            for name, partitions in self._topics.items():
                self.create_topic(name, partitions)
            if self._wants_gateway:
                _ = self.http_url
        except BaseException:
            self.stop()
            raise
        return self

    def _start_serving(self) -> None:
        self._data = self._data or self._given_data or Path(tempfile.mkdtemp(prefix="headrace-"))
        try:
            listeners = self._listeners()
            self._run = _Run(
                BrokerConfig.parse({**self._settings, "listeners": listeners, "log.dirs": str(self._data)})
            )
        except BaseException:
            self._forget()
            raise

    def stop(self) -> None:
        """Stop gracefully and remove a directory of our own; AssertionError if the broker left a task behind."""
        gateway, self._gateway = self._gateway, None
        try:
            if gateway is not None:
                gateway.stop()
        finally:
            self._stop_and_forget()

    def _stop_and_forget(self) -> None:
        try:
            self._stop_serving()
        finally:
            self._forget()

    def restart(self) -> None:
        """Stop gracefully, then start again on the same data and the same port; a gateway goes on meanwhile."""
        self._running()
        self._stop_serving()
        self._start_serving()

    def create_topic(self, name: str, partitions: int = 1, **configs: object) -> str:
        """Make a topic and give its name; `retention_ms=1000` sets `retention.ms`."""
        settings = {key.replace("_", "."): _text(value) for key, value in configs.items()}
        error = Admin(self.bootstrap, timeout=_ADMIN_SECONDS).create_topics([name], partitions, None, settings)[name]
        if error is not None:
            raise error
        return name

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _running(self) -> "_Run":
        if self._run is None:
            raise RuntimeError("the broker does not run; use it in a `with` block or call start()")
        return self._run

    def _stop_serving(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.stop()

    def _listeners(self) -> str:
        """Where to listen: on ports that are ours through restarts, where none was given."""
        return ",".join(map(str, map(self._with_port, read_listeners(self._settings).bound)))

    def _with_port(self, listener: ListenerAddress) -> ListenerAddress:
        if listener.port:
            return listener
        held = self._ports.get(listener.name) or HeldPort(listener.host)
        self._ports[listener.name] = held
        return listener._replace(port=held.number)

    def _forget(self) -> None:
        ports, self._ports = self._ports, {}
        for port in ports.values():
            port.release()
        self._remove_data()

    def _remove_data(self) -> None:
        if self._data is not None and self._given_data is None:
            shutil.rmtree(self._data, ignore_errors=True)
        self._data = None


class _Run:
    """One life of the broker, from start to stop, on a thread."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, str]] = Future()
        self._stopped: Future[list[str]] = Future()
        self._thread = threading.Thread(target=self._main, name="headrace-broker", daemon=True)
        self._thread.start()
        try:
            self._loop, self._stop, self.bootstrap = self._started.result(_START_SECONDS)
        except TimeoutError:
            raise RuntimeError(f"the broker did not start within {_START_SECONDS:.0f} s") from None

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        left = self._stopped.result(_STOP_SECONDS)
        self._thread.join(_STOP_SECONDS)
        assert not left, f"the broker left tasks behind: {', '.join(left)}"

    def _main(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                left = runner.run(self._serve())
        except BaseException as error:
            (self._stopped if self._started.done() else self._started).set_exception(error)
        else:
            self._stopped.set_result(left)

    async def _serve(self) -> list[str]:
        server = Server(self._config)
        await server.start()
        stop = asyncio.Event()
        self._started.set_result((asyncio.get_running_loop(), stop, server.bootstrap))
        await stop.wait()
        await server.stop()
        return [repr(task.get_coro()) for task in asyncio.all_tasks() - {asyncio.current_task()}]


def log_through_logging() -> None:
    """Hand the broker's log lines to `logging`, where pytest shows them; structlog's own default is to print them."""
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=["event"], bool_as_flag=False),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
