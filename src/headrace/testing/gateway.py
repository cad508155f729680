"""A gateway inside the process of a test: HTTP and the schema registry beside a broker.

with Broker() as broker, Gateway(broker.bootstrap) as gateway:
    requests.post(f"{gateway.url}/topics/orders", data=b"...")
"""

import threading
from concurrent.futures import Future
from types import TracebackType
from typing import Final, Self

from headrace.gateway.app import make_application
from headrace.gateway.schemas import mount_registry
from headrace.gateway.settings import Settings
from headrace.net.address import parse_bootstrap
from headrace.web.guard import Guard
from headrace.web.server import HttpServer, Listen

HOST: Final = "127.0.0.1"
_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 60.0
_GRACE_SECONDS: Final = 1


class Gateway:
    """HTTP on a free port of 127.0.0.1 for the brokers at `bootstrap`, in a thread with its own event loop."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._server: HttpServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Where HTTP is served; the schema registry has the same address."""
        if self._server is None:
            raise RuntimeError("the gateway does not run; use it in a `with` block or call start()")
        return f"http://{HOST}:{self._server.port}"

    def start(self) -> Self:
        """Serve; raises what the gateway raised if it cannot."""
        if self._server is not None:
            raise RuntimeError("the gateway runs already")
        settings = Settings(bootstrap=tuple(parse_bootstrap(self._bootstrap)), mover={})
        application = make_application(settings, Guard(hosts=[HOST]), [mount_registry])
        started: Future[None] = Future()
        listen = Listen(host=HOST, port=0, grace_seconds=_GRACE_SECONDS)
        server = HttpServer(application, listen, lambda *_: started.set_result(None))
        self._server = server
        self._thread = threading.Thread(target=_run, args=(server, started), name="headrace-gateway", daemon=True)
        self._thread.start()
        try:
            started.result(_START_SECONDS)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Answer what was asked, then let go of the port; safe to call twice."""
        server, thread = self._server, self._thread
        self._server = self._thread = None
        if server is not None and thread is not None:
            server.stop()
            thread.join(_STOP_SECONDS)
            assert not thread.is_alive(), f"the gateway did not stop within {_STOP_SECONDS:.0f} s"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _run(server: HttpServer, started: "Future[None]") -> None:
    try:
        server.run()
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)
    else:
        if not started.done():
            started.set_exception(RuntimeError("the gateway ended while starting; its log tells why"))
