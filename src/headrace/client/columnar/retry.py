"""Retries: which errors are retried, for how long, and the error when that was in vain."""

import time
from collections.abc import Callable
from math import inf
from typing import TypeVar

from headrace.protocol.errors import ErrorCode

from ..core.codes import is_retriable
from ..core.errors import AuthenticationRefused, ConnectionLost, VersionNotServed
from ..errors import AUTHENTICATION_FAILED, ClientError, ClusterUnreachable
from .settings import ClientSettings

T = TypeVar("T")


class TryAgain(Exception):
    """The same question may have an answer in a moment; `error` is what to raise when it never has."""

    def __init__(self, error: ClientError) -> None:
        super().__init__(str(error))
        self.error = error


class Patience:
    """Pauses that grow from one try to the next, until `default.api.timeout.ms` or a shorter time is over.

    With `least` it is no shorter than that, whatever `default.api.timeout.ms` says.
    """

    def __init__(self, settings: ClientSettings, most: float = inf, *, least: float = 0.0) -> None:
        self._limit = max(min(settings.seconds("default.api.timeout.ms"), most), least)
        self._deadline = time.monotonic() + self._limit
        self._pause = settings.seconds("retry.backoff.ms")
        self._longest = settings.seconds("retry.backoff.max.ms")

    def pause(self, error: ClientError) -> None:
        """Wait before the next try; raises `error` when the time is over."""
        time.sleep(self.next_pause(error))

    def next_pause(self, error: ClientError) -> float:
        """The seconds to wait before the next try; raises `error` when the time is over."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            error.args = (f"{error.message} (tried for {self._limit:g} s)",)
            raise error
        pause = min(self._pause, left)
        self._pause = min(2 * self._pause, self._longest)
        return pause


def retried(
    settings: ClientSettings, attempt: Callable[[], T], on_lost: Callable[[], None], patience: Patience | None = None
) -> T:
    """What `attempt` returns once it raises neither `TryAgain` nor `ConnectionLost`, which calls `on_lost`."""
    patience = patience or Patience(settings)
    while True:
        try:
            return translated_call(attempt)
        except TryAgain as again:
            patience.pause(again.error)
        except ConnectionLost as lost:
            on_lost()
            patience.pause(unreachable(lost))


def translated_call(call: Callable[[], T]) -> T:
    """What `call` returns; the network's errors that no further try can mend are raised as `ClientError`."""
    try:
        return call()
    except AuthenticationRefused as error:
        raise ClientError(f"not let in by {error}", AUTHENTICATION_FAILED) from error
    except VersionNotServed as error:
        raise ClientError(str(error), "UNSUPPORTED_VERSION") from error


def unreachable(lost: ConnectionLost) -> ClusterUnreachable:
    return ClusterUnreachable(f"no broker answers at {lost}", "_TRANSPORT")


def refused(code: ErrorCode, what: str, message: str | None = None) -> ClientError:
    """The error for a code that a broker answered; `what` is what it was asked about."""
    words = message or code.name.replace("_", " ")
    return ClientError(f"{what}: {words}", code.name.upper())


def refused_or_again(code: ErrorCode, what: str, message: str | None = None) -> Exception:
    """What to raise within an attempt for a code that a broker answered: `TryAgain` for one that passes by itself."""
    error = refused(code, what, message)
    return TryAgain(error) if is_retriable(code) else error
