"""Asks every client every question and keeps the answers."""

import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path

from .broker import BrokerError
from .clients.confluent import ConfluentDriver
from .model import Advertised, ClientDriver, Codec, Membership, NotOffered, Pending, Record, Sending
from .provision import Factory, Site, Unavailable
from .records import PARTITIONS, check_equal, sample, spans_of
from .scenarios import SCENARIOS, Scenario, Stage
from .tap import Tap
from .wire import api_versions

MIXED_TITLE = "read what every client wrote, all codecs in one topic"
TITLES = (*(scenario.title for scenario in SCENARIOS), MIXED_TITLE)


class Status(Enum):
    """How a scenario ended; the value is its mark in the tables."""

    PASSED = "yes"
    FAILED = "FAILS"
    NOT_OFFERED = "n/a"
    PENDING = "later"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of one scenario for one client, with the reason when it is not a plain pass, or what it counted."""

    status: Status
    note: str = ""
    count: str = ""
    trace: str = ""


@dataclass(slots=True, kw_only=True)
class ClientResult:
    """All that was seen of one client; `unavailable` tells why it could not be tried.

    `groups` has the outcomes of the group scenarios by protocol.
    """

    name: str
    version: str = ""
    default_hash: str = ""
    unavailable: str = ""
    seconds: float = 0.0
    membership: Membership | None = None
    groups: dict[str, dict[str, Outcome]] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    seen: set[tuple[int, int]] = field(default_factory=set)


@dataclass(slots=True, kw_only=True)
class Run:
    """A whole run: what the broker advertised and what each client did with it."""

    advertised: Advertised
    results: list[ClientResult]

    @property
    def failed(self) -> bool:
        """Whether any scenario of any client failed."""
        return any(
            outcome.status is Status.FAILED
            for result in self.results
            for outcomes in (result.outcomes, *result.groups.values())
            for outcome in outcomes.values()
        )

    @property
    def incomplete(self) -> bool:
        """Whether a client could not be tried on this machine."""
        return any(result.unavailable for result in self.results)


def attempt(question: Callable[[], None]) -> Outcome:
    """Run one scenario and put its end into words."""
    try:
        question()
    except NotOffered as reason:
        return Outcome(status=Status.NOT_OFFERED, note=str(reason))
    except Pending as reason:
        return Outcome(status=Status.PENDING, note=str(reason))
    except Exception as error:
        words = [f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]
        note = "; ".join(words).replace("\n", " ")[:400]
        return Outcome(status=Status.FAILED, note=note, trace="".join(traceback.format_exception(error)))
    return Outcome(status=Status.PASSED)


@dataclass(slots=True, kw_only=True)
class Column:
    """A client at work: its result so far and the stage it works on."""

    result: ClientResult
    stage: Stage


class Suite:
    """Runs the scenarios against one broker; `say` is told what happens, one line each."""

    def __init__(self, bootstrap: str, cache: Path, logs: Path, say: Callable[[str], None]) -> None:
        self._bootstrap = bootstrap
        self._cache = cache
        self._logs = logs
        self._say = say
        self._advertised = self._require_broker()
        self._reference = ConfluentDriver(bootstrap, self._advertised)
        self._prefix = f"compat-{time.time_ns() // 1_000_000:x}"

    def run(self, clients: Mapping[str, Callable[[Path], Factory]], *, keep: bool, ask: bool = True) -> Run:
        """Every client through every scenario, then all of them on one mixed topic; only set up without `ask`."""
        results: list[ClientResult] = []
        columns: list[Column] = []
        with ExitStack() as cleanup:
            for name, prepare in clients.items():
                result = ClientResult(name=name)
                results.append(result)
                column = self._start(result, prepare, cleanup)
                if column is not None and ask:
                    self._ask_all(column)
                    columns.append(column)
            mixed = self._mix(columns) if ask else []
            made = [*mixed, *(topic for column in columns for topic in column.stage.topics)]
            if not keep:
                self._clean(made)
        return Run(advertised=self._advertised, results=results)

    def _start(self, result: ClientResult, prepare: Callable[[Path], Factory], cleanup: ExitStack) -> Column | None:
        self._say(f"{result.name}: setting up")
        try:
            factory = prepare(self._cache)
        except Unavailable as reason:
            result.unavailable = str(reason)
            self._say(f"{result.name}: not run: {reason}")
            return None
        tap = cleanup.enter_context(Tap(self._bootstrap))
        result.seen = tap.seen
        driver = factory(Site(bootstrap=tap.address, advertised=self._advertised, logs=self._logs))
        cleanup.callback(driver.close)
        started = attempt(lambda: self._identify(result, driver))
        if started.status is not Status.PASSED:
            self._note(result, TITLES[0], started)
            return None
        prefix = f"{self._prefix}-{result.name}"
        return Column(result=result, stage=Stage(driver=driver, reference=self._reference, prefix=prefix))

    @staticmethod
    def _identify(result: ClientResult, driver: ClientDriver) -> None:
        result.default_hash = driver.default_hash
        result.version = driver.version()
        result.membership = driver.membership()

    def _ask_all(self, column: Column) -> None:
        result = column.result
        began = time.monotonic()
        for scenario in SCENARIOS:
            self._note(result, scenario.title, self._ask(scenario, column.stage))
        result.seconds = time.monotonic() - began
        counts = Counter(outcome.status.value for outcome in result.outcomes.values())
        said = ", ".join(f"{number} {status}" for status, number in counts.items())
        self._say(f"{result.name} {result.version}: {said} in {result.seconds:.1f} s")

    @staticmethod
    def _ask(scenario: Scenario, stage: Stage) -> Outcome:
        stage.unread = ""
        outcome = attempt(partial(scenario.run, stage))
        if outcome.status is Status.PASSED and stage.unread:
            return Outcome(status=Status.PENDING, note=f"its writing is right; {stage.unread}")
        return outcome

    def _note(self, result: ClientResult, title: str, outcome: Outcome) -> None:
        result.outcomes[title] = outcome
        if outcome.status is Status.FAILED:
            self._say(f"{result.name}: {title}: {outcome.status.value}: {outcome.note}")
            with (self._logs / f"{result.name}.failures").open("a") as log:
                log.write(f"{title}\n{outcome.trace}\n")
            self._require_broker()

    def _require_broker(self) -> Advertised:
        # Without this, a broker that died would cost every scenario still to come its whole timeout.
        try:
            return api_versions(self._bootstrap)
        except OSError as error:
            raise BrokerError(f"no broker answers at {self._bootstrap}: {error}") from error

    def _mix(self, columns: Sequence[Column]) -> list[str]:
        topic = f"{self._prefix}-mixed"
        self._say(f"mixed topic: {len(columns)} clients write every codec, and read each other")
        created = attempt(partial(self._reference.create_topic, topic, PARTITIONS, {}))
        written: list[Record] = []
        for partition, column in enumerate(columns):
            driver = column.stage.driver
            outcome = created
            if created.status is Status.PASSED:
                outcome = attempt(partial(_write_every_codec, topic, partition, driver, written))
            if outcome.status is Status.FAILED:
                self._note(column.result, MIXED_TITLE, outcome)
        for column in columns:
            if MIXED_TITLE not in column.result.outcomes:
                outcome = attempt(partial(_read_equal, topic, column.stage.driver, written))
                self._note(column.result, MIXED_TITLE, outcome)
        return [topic]

    def _clean(self, topics: Sequence[str]) -> None:
        left = self._reference.list_topics()
        for topic in topics:
            if topic in left:
                attempt(partial(self._reference.delete_topic, topic))


def _write_every_codec(topic: str, partition: int, driver: ClientDriver, written: list[Record]) -> None:
    own: list[Record] = []
    for codec in Codec:
        records = sample(f"{driver.name}-{codec.value}", partition, driver)
        try:
            driver.produce(topic, records, Sending(codec=codec))
        except (NotOffered, Pending):
            continue
        own += records
    written += own


def _read_equal(topic: str, driver: ClientDriver, written: Sequence[Record]) -> None:
    check_equal(written, driver.consume(topic, spans_of(written)))
