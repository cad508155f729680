"""What a service does about one pipeline: a pure function of what is wanted, what runs here and elsewhere, and time.

Nothing here starts a process or reads a topic. `Supervision.next_step` is asked again and again; what happened is told
by `started`, `heard` and `ended`. Which runner has a pipeline is decided by its lease alone: a service starts a runner
where nobody seems to hold the lease, and the runner that does not get it ends.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from typing import Any, Final

from .model import ACTIVE, RUNNING, Deployment, State, Status

FIRST_PAUSE_MS: Final = 1_000
LONGEST_PAUSE_MS: Final = 300_000
LOOP_FAILURES: Final = 5
"""Failures in a row from which on a pipeline is said to be in a crash loop."""
HEALTHY_MS: Final = 300_000
"""A runner that has lived for so long does not count with those that failed before it."""
SILENT_MS: Final = 8_000
"""Without a heartbeat for so long, whoever holds the lease may be dead; the next runner then waits until it is sure."""
KILL_MS: Final = 60_000
"""What a runner has to stop; its queries get 30 s of it."""
_REPORT_MS: Final = 10_000
_PROGRESS_MS: Final = 2_000
_GONE_MS: Final = 60_000
"""A status of a runner that is older than this is that of a service that died."""
_STAGGER_MS: Final = 1_500
"""Services that run less come first: so pipelines spread."""
_ELSEWHERE_MS: Final = 3_000


class ExitCode(IntEnum):
    """How a runner tells why it has ended."""

    OVER = 0
    FAILED = 1
    MISTAKE = 2
    ELSEWHERE = 4
    """Another runner has the lease."""


class Step(Enum):
    """What is to be done now."""

    NOTHING = "nothing"
    START = "start"
    STOP = "stop"
    KILL = "kill"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseView:
    """Who holds a pipeline's lease, as far as the topic of leases tells."""

    holder: str = ""
    """The id of the runner; empty for nobody."""
    host: str = ""
    silent_ms: int = 0
    """For how long nothing was heard of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """The service itself. `home_of` tells where it would keep the checkpoint of a deployment."""

    id: str
    host: str
    process: int
    home_of: Callable[[Deployment], str]


class Supervision:
    """One pipeline, as one service sees it."""

    def __init__(self, name: str, here: Here, chance: Callable[[], float] = random.random) -> None:
        self.status = Status(name=name, state=State.WAITING)
        """What is said of it; this service's own words where `is_ours`."""
        self.is_ours = False
        self.revision = ""
        """Of the runner that runs here; empty without one."""
        self._here = here
        self._chance = chance
        self._asked_ms = 0
        """When the runner was asked to stop."""
        self._tries_ms = 0
        """Before this time no runner is started."""
        self._dead: set[str] = set()
        """Runners of this service that have ended, by the ids of their leases."""
        self._confession = ""
        """Why the runner said that it ends."""
        self._reported: Status | None = None
        self._reported_ms = 0

    @property
    def runs(self) -> bool:
        """Whether a runner of this service lives."""
        return bool(self.revision)

    @property
    def dead(self) -> tuple[str, ...]:
        """Runners that are known to have ended."""
        return tuple(sorted(self._dead))

    def learn(self, status: Status) -> None:
        """Take in a record of the topic, in their order. While a runner lives here, this service knows better."""
        if not self.runs and not (self.is_ours and status.service == self._here.id):
            self.status = status
            self.is_ours = status.service == self._here.id
            self._reported = status if self.is_ours else None

    def next_step(self, wanted: Deployment | None, lease: LeaseView, now_ms: int, load: int = 0) -> Step:
        """What to do now; `load` is how many runners this service has."""
        if self.runs:
            return self._keep(wanted, now_ms)
        if wanted is None or wanted.wanted != RUNNING:
            self._rest(wanted, now_ms)
            return Step.NOTHING
        if self._is_over(wanted) or not self._may_run(wanted, now_ms) or not self._is_free(lease):
            return Step.NOTHING
        return self._due(wanted, now_ms, load)

    def _keep(self, wanted: Deployment | None, now_ms: int) -> Step:
        if self._asked_ms:
            return Step.KILL if now_ms - self._asked_ms > KILL_MS else Step.NOTHING
        if wanted is not None and wanted.wanted == RUNNING and wanted.revision == self.revision:
            return Step.NOTHING
        self._asked_ms = now_ms
        self._say(now_ms, state=State.STOPPING)
        return Step.STOP

    def _rest(self, wanted: Deployment | None, now_ms: int) -> None:
        """Say that it is stopped, if nobody has."""
        if wanted is None or (self.status.state is State.STOPPED and self.status.revision == wanted.revision):
            return
        if self.status.state in ACTIVE and now_ms - self.status.updated_ms < _GONE_MS:
            return  # The service that has it will say so.
        self._say(now_ms, state=State.STOPPED, revision=wanted.revision, problem="", failures=0, next_start_ms=0)

    def _is_over(self, wanted: Deployment) -> bool:
        return self.status.revision == wanted.revision and self.status.state in (State.DONE, State.FAILED)

    def _may_run(self, wanted: Deployment, now_ms: int) -> bool:
        """Whether its checkpoint is within reach: who starts without it would write again what was written."""
        home = self._here.home_of(wanted)
        if not self.status.home or self.status.home == home:
            return True
        problem = (
            f"its checkpoint is {self.status.home}, out of reach of the service on {self._here.host}: start a service "
            "there, or share --data or --checkpoints among services"
        )
        is_told = self.status.state is State.WAITING and self.status.problem == problem
        is_live = self.status.state in ACTIVE and now_ms - self.status.updated_ms < _GONE_MS
        if not is_told and not is_live:
            self._say(now_ms, state=State.WAITING, problem=problem)
        return False

    def _is_free(self, lease: LeaseView) -> bool:
        return not lease.holder or lease.holder in self._dead or lease.silent_ms > SILENT_MS

    def _due(self, wanted: Deployment, now_ms: int, load: int) -> Step:
        if not self._tries_ms:
            own = 0 if self.is_ours or self.status.service == self._here.id else 1
            self._tries_ms = now_ms + int((load + own) * _STAGGER_MS * (0.5 + self._chance()))
        is_same = self.status.revision == wanted.revision
        pause_until = self.status.next_start_ms if is_same else 0
        if pause_until - now_ms > 2 * LONGEST_PAUSE_MS:  # The clock of another host, or of this one, is wrong.
            pause_until = 0
        return Step.START if now_ms >= max(self._tries_ms, pause_until) else Step.NOTHING

    # What has happened

    def started(self, wanted: Deployment, runner: str, spark: str, now_ms: int) -> None:
        """A runner has been started here."""
        is_same = self.status.revision == wanted.revision
        self.revision = wanted.revision
        self.is_ours = True
        self._asked_ms = self._tries_ms = 0
        self._confession = ""
        self.status = replace(
            self.status,
            state=State.STARTING,
            revision=wanted.revision,
            service=self._here.id,
            host=self._here.host,
            process=self._here.process,
            runner=runner,
            home=self._here.home_of(wanted),
            spark=spark,
            started_ms=now_ms,
            restarts=self.status.restarts + 1 if is_same and self.status.started_ms else 0,
            failures=self.status.failures if is_same else 0,
            problem=self.status.problem if is_same else "",
            next_start_ms=0,
            sinks=(),
            updated_ms=now_ms,
        )

    def heard(self, event: Mapping[str, Any], now_ms: int) -> None:
        """The runner has told something; see `headrace pipeline run --json`."""
        match event.get("event"):
            case "started":
                self._say(now_ms, state=State.RUNNING)
            case "progress":
                sink = {name: value for name, value in event.items() if name not in ("event", "time")}
                others = [one for one in self.status.sinks if one.get("sink") != sink.get("sink")]
                self._say(now_ms, sinks=(*others, sink))
            case "failed":
                self._confession = str(event.get("error"))[:4000]
                self._say(now_ms, problem=self._confession)

    def ended(self, runner: str, code: int, last_words: str, now_ms: int) -> None:
        """The runner has ended, and its process is gone."""
        was_asked, lived_ms = bool(self._asked_ms), now_ms - self.status.started_ms
        self._dead.add(runner)
        self.revision, self._asked_ms, self._tries_ms = "", 0, 0
        if code == ExitCode.ELSEWHERE:
            self.is_ours = False  # What the one says that has it counts.
            self._tries_ms = now_ms + _ELSEWHERE_MS
        elif was_asked:
            self._say(now_ms, state=State.STOPPED, sinks=_at_rest(self.status), revision="", problem="")
        elif code == ExitCode.OVER:
            self._say(now_ms, state=State.DONE, sinks=_at_rest(self.status), problem="", failures=0)
        elif code == ExitCode.MISTAKE:
            self._say(now_ms, state=State.FAILED, problem=self._confession or last_words)
        else:
            words = self._confession or ("" if code < 0 else last_words)
            self._failed(words or _death(code), lived_ms, now_ms)

    def cannot_start(self, wanted: Deployment, problem: str, now_ms: int, *, is_mistake: bool) -> None:
        """No runner could be made of the definition; `is_mistake` where no other try could help."""
        if self.status.revision != wanted.revision:
            self._say(now_ms, revision=wanted.revision, failures=0, restarts=0, started_ms=0, sinks=())
        self._tries_ms = 0
        if is_mistake:
            self._say(now_ms, state=State.FAILED, problem=problem)
        else:
            self._failed(problem, 0, now_ms)

    def released(self, now_ms: int) -> None:
        """The service ends: what it ran waits for another one."""
        self._say(now_ms, state=State.WAITING, sinks=_at_rest(self.status), next_start_ms=0)

    def _failed(self, words: str, lived_ms: int, now_ms: int) -> None:
        failures = 1 if lived_ms > HEALTHY_MS else self.status.failures + 1
        pause = pause_after(failures)
        state = State.CRASH_LOOP if failures >= LOOP_FAILURES else State.BACKOFF
        self._say(
            now_ms,
            state=state,
            failures=failures,
            next_start_ms=now_ms + pause,
            problem=words[:4000],
            sinks=_at_rest(self.status),
        )

    def _say(self, now_ms: int, **changes: Any) -> None:
        self.status = replace(
            self.status,
            **{
                "service": self._here.id,
                "host": self._here.host,
                "process": self._here.process,
                "updated_ms": now_ms,
                **changes,
            },
        )
        self.is_ours = True

    def report(self, now_ms: int) -> Status | None:
        """What to write to the topic now: changes of state at once, progress and signs of life now and then."""
        if not self.is_ours or not self._is_news(now_ms):
            return None
        if self.runs:
            self.status = replace(self.status, updated_ms=now_ms)
        self._reported, self._reported_ms = self.status, now_ms
        return self.status

    def unreported(self) -> None:
        """What was to be written was not."""
        self._reported = None

    def _is_news(self, now_ms: int) -> bool:
        last, age = self._reported, now_ms - self._reported_ms
        if last is None or _words(last) != _words(self.status):
            return True
        return (age >= _PROGRESS_MS and last.sinks != self.status.sinks) or (self.runs and age >= _REPORT_MS)


def _words(status: Status) -> Status:
    """A status without what changes all the time."""
    return replace(status, updated_ms=0, sinks=())


def pause_after(failures: int) -> int:
    """The milliseconds before a runner starts again that failed so many times in a row."""
    return int(min(FIRST_PAUSE_MS * 2.0 ** min(failures - 1, 30), LONGEST_PAUSE_MS))


def _at_rest(status: Status) -> tuple[Mapping[str, Any], ...]:
    return tuple({**sink, "state": "stopped", "rows_per_second": 0.0} for sink in status.sinks)


def _death(code: int) -> str:
    return f"the runner was ended by signal {-code}" if code < 0 else f"the runner ended with code {code}"
