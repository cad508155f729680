"""Waiting for a cluster, never in silence and never in vain.

What takes longer than a moment is looked into: the brokers are asked whether they answer at all. Where none does the
wait is over, with the reason; where they do, `on_wait` is told what is waited for, and the wait goes on.
"""

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, Final, TypeVar

from .errors import AUTHENTICATION_FAILED, ClientError, ClusterUnreachable

T = TypeVar("T")
OnWait = Callable[[str], None]
Diagnose = Callable[[], ClientError | None]
"""Asks the cluster how it is: what makes every further second of waiting useless, or None."""

MOMENT_SECONDS: Final = 1.0
"""After which it is looked into why there is no answer."""
NOTE_SECONDS: Final = 2.0
"""After which `on_wait` is told."""
_SLICE_SECONDS: Final = 0.1
HANGS_UP: Final = (
    "the broker hangs up on this client: its listener may want a user and a password, or TLS, which security.protocol "
    "and sasl.mechanism say"
)
_REFUSALS: Final = {"_AUTHENTICATION": AUTHENTICATION_FAILED, "_SSL": "SSL_HANDSHAKE_FAILED"}
_PREFIX: Final = re.compile(r"^(?:\w+://)?(\S+?)(?:/bootstrap|/\d+)?: ")
_SUFFIX: Final = re.compile(r"\s*\((?:after \d+ms in state \w+|[^()]*identical error[^()]*)[^()]*\)")


class LibraryErrors:
    """What librdkafka's error callback has told: it goes on trying, whatever the reason is."""

    def __init__(self) -> None:
        self.refusal: ClientError | None = None
        """A reason that further tries do not mend: a wrong password, a certificate."""
        self.last: str = ""
        """The last that was told of a connection."""

    def __call__(self, error: Any) -> None:
        name, text = str(error.name()), str(error.str())
        if name in _REFUSALS:
            self.refusal = self.refusal or ClientError(f"not let in by {_plain(text)}", _REFUSALS[name])
        elif name != "_ALL_BROKERS_DOWN":
            self.last = _plain(text)


def _plain(text: str) -> str:
    """`sasl_plaintext://host:1/bootstrap: SASL authentication error: why (after 3ms in state AUTH_REQ)` in short."""
    text = _SUFFIX.sub("", _PREFIX.sub(r"\1: ", text))
    return text.replace("SASL authentication error: ", "")


class Waiter:
    """Waits for the answers of one cluster."""

    def __init__(
        self,
        diagnose: Diagnose,
        *,
        limit: float,
        on_wait: OnWait | None = None,
        errors: LibraryErrors | None = None,
        serve: Callable[[], object] = lambda: None,
    ) -> None:
        self._diagnose = diagnose
        self._limit = limit
        self._on_wait = on_wait or (lambda _message: None)
        self._errors = errors or LibraryErrors()
        self._serve = serve
        """Lets the client library call back."""
        self._was_reached = False
        self._inside = threading.local()

    def call(self, work: Callable[[], T], what: str) -> T:
        """What `work` returns, which blocks; it goes on in the background when the wait ends before it."""
        if getattr(self._inside, "is_worker", False):
            return work()

        def marked() -> T:
            self._inside.is_worker = True
            return work()

        return self.result(in_background(marked), what)

    def result(self, future: "Future[T]", what: str) -> T:
        """The result of a future, or what it failed with; `ClusterUnreachable` when it does not come."""
        started = time.monotonic()
        diagnosis: Future[ClientError | None] | None = None
        has_told = False
        while not wait([future], timeout=_SLICE_SECONDS).done:
            self._serve()
            if self._errors.refusal is not None:
                raise self._errors.refusal
            waited = time.monotonic() - started
            if waited > self._limit:
                raise ClusterUnreachable(f"the cluster did not answer within {self._limit:g} s: {what}", "_TIMED_OUT")
            if diagnosis is None and waited > min(MOMENT_SECONDS, self._limit / 2):
                diagnosis = in_background(self._diagnose)
            if diagnosis is not None and diagnosis.done():
                self._take_diagnosis(diagnosis.result())
            if not has_told and waited > NOTE_SECONDS:
                has_told = True
                self._on_wait(f"waiting for {what}{self._reason()}")
        failure = future.exception()
        if failure is not None:
            self._explain(failure)
        self._was_reached = True
        return future.result()

    def _explain(self, failure: BaseException) -> None:
        """Raise what the error callback has told where the failure itself does not say it."""
        self._serve()
        if self._errors.refusal is not None:
            raise self._errors.refusal
        code = getattr(failure.args[0], "name", str)() if failure.args else ""
        if code == "_TRANSPORT" and not self._was_reached:
            told = f" ({self._errors.last})" if self._errors.last else ""
            raise ClusterUnreachable(f"{HANGS_UP}{told}", code) from failure

    def _take_diagnosis(self, reason: ClientError | None) -> None:
        if reason is not None:
            raise reason
        if not self._was_reached and self._errors.last:
            raise ClusterUnreachable(f"{HANGS_UP} ({self._errors.last})", "_TRANSPORT")

    def _reason(self) -> str:
        return f" ({self._errors.last})" if self._errors.last else ""


def in_background(work: Callable[[], T]) -> "Future[T]":
    """What `work` comes to, in a thread of its own that keeps no program from ending."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # nobody can take back what runs

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="headrace-wait", daemon=True).start()
    return future
