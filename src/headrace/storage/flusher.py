"""Group commit: many requests share one sync, and no sync runs on the loop."""

from collections.abc import Callable
from typing import Final

import structlog

from headrace.metrics.histogram import Histogram

from .log import Log
from .sync import SyncTicket

logger = structlog.get_logger(__name__)

Done = Callable[[], None]
RunInThread = Callable[[Callable[[], None], Callable[[BaseException | None], None]], None]


class _Round:
    """The tickets of all logs that were dirty when the round began."""

    def __init__(self, now_ns: Callable[[], int] | None) -> None:
        self._now_ns = now_ns
        self.durations: list[int] = []
        self.tickets: list[tuple[Log, SyncTicket]] = []
        self.errors: dict[Log, Exception] = {}
        self.waiting: list[Done] = []

    def run(self) -> None:
        """On the worker: one log that fails does not keep the others from being synced."""
        for log, ticket in self.tickets:
            began = 0 if self._now_ns is None else self._now_ns()
            try:
                ticket.run()
            except Exception as error:
                self.errors[log] = error
            if self._now_ns is not None:
                self.durations.append(self._now_ns() - began)


class Flusher:
    """Syncs logs on a worker thread, one round at a time; requests that arrive meanwhile share the next round."""

    def __init__(self, run_in_thread: RunInThread, now_ns: Callable[[], int] | None = None) -> None:
        """With `now_ns` it measures how long syncs take."""
        self._run_in_thread: Final = run_in_thread
        self._now_ns = now_ns
        self.durations = Histogram()
        self._waiting: dict[Log, list[Done]] = {}
        self._round: _Round | None = None

    @property
    def round(self) -> object | None:
        """What is being synced, if anything is."""
        return self._round

    @property
    def is_idle(self) -> bool:
        return self._round is None and not self._waiting

    @property
    def pending(self) -> int:
        """How many logs are being synced, or wait for it."""
        return len(self._waiting) + (0 if self._round is None else len(self._round.tickets))

    def run(self, work: Done, done: Callable[[BaseException | None], None]) -> None:
        """Do something else on the worker, after what waits there; `done` is called on the loop with what it raised."""
        self._run_in_thread(work, done)

    def request(self, log: Log, done: Done) -> None:
        """Sync a log soon. `done` is called on the loop when it is synced as far as it reaches now, or offline,
        or has to be asked again because no file could be opened; at once when there is nothing to sync."""
        waiting = self._waiting.setdefault(log, [])
        if done not in waiting:
            waiting.append(done)
        if self._round is None:
            self._start_round()

    def _start_round(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, {}
            current = self._round = _Round(self._now_ns)
            for log, done in waiting.items():
                ticket = _ticket_of(log)
                if ticket is not None:
                    current.tickets.append((log, ticket))
                current.waiting += done
            if current.tickets:
                self._run_in_thread(current.run, self._finish_round)
                return
            self._round = None
            _call_all(current.waiting)

    def _finish_round(self, error: BaseException | None) -> None:
        current, self._round = self._round, None
        assert current is not None
        for duration in current.durations:
            self.durations.add(duration)
        for log, ticket in current.tickets:
            log.finish_sync(ticket, current.errors.get(log, error))
        self._start_round()
        _call_all(current.waiting)


def _ticket_of(log: Log) -> SyncTicket | None:
    """What has to be synced of a log. One that raises here goes offline, and the others are synced without it."""
    try:
        return log.begin_sync()
    except Exception as error:
        logger.exception("a sync cannot be begun", log=log.name)
        log.fail(error)
        return None


def _call_all(callbacks: list[Done]) -> None:
    """A callback that raises does not keep the others from being called."""
    for callback in callbacks:
        try:
            callback()
        except Exception:
            logger.exception("the end of a sync could not be taken up")
