"""Asks every client with every protocol it speaks, two at a time, each on a broker of its own."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ..broker import BrokerError, OwnBroker
from ..clients.confluent import ConfluentDriver
from ..model import Membership
from ..runner import ClientResult, Outcome, Status, attempt
from ..tap import Tap
from ..wire import api_versions
from .scenarios import GROUP_SCENARIOS, GroupScenario
from .trial import SESSION_MS, Site, Trial

_AT_ONCE = 2
# What a broker that the suite did not configure gives a member of the new protocol.
_FOREIGN_SESSION_MS = {"classic": SESSION_MS, "consumer": 45_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A client with one protocol: a column of the table."""

    result: ClientResult
    membership: Membership
    protocol: str

    @property
    def name(self) -> str:
        return f"{self.result.name}-{self.protocol}"


def _entries(results: Sequence[ClientResult]) -> Iterator[_Entry]:
    for result in results:
        for protocol in result.membership.protocols if result.membership else ():
            assert result.membership is not None
            yield _Entry(result=result, membership=result.membership, protocol=protocol)


class GroupSuite:
    """Runs the group scenarios; with `bootstrap` on that broker, else on brokers of its own in `work`."""

    def __init__(self, bootstrap: str | None, work: Path, say: Callable[[str], None], keep: bool) -> None:
        self._bootstrap = bootstrap
        self._work = work
        self._say = say
        self._keep = keep
        self._prefix = f"groups-{time.time_ns() // 1_000_000:x}"

    def run(self, results: Sequence[ClientResult], only: Sequence[str] = ()) -> None:
        """Add to each result what its members did; `only` names the scenarios, all when empty."""
        chosen = [scenario for scenario in GROUP_SCENARIOS if not only or scenario.slug in only]
        entries = list(_entries(results))
        for entry in entries:
            entry.result.groups[entry.protocol] = {}
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            # The last ones start slowest; begun first, they do not run alone at the end.
            runs = [pool.submit(self._run_entry, entry, chosen) for entry in reversed(entries)]
            try:
                for run in runs:
                    run.result()
            finally:
                pool.shutdown(cancel_futures=True)

    def _run_entry(self, entry: _Entry, scenarios: Sequence[GroupScenario]) -> None:
        began = time.monotonic()
        outcomes = entry.result.groups[entry.protocol]
        with ExitStack() as cleanup:
            own = None
            if self._bootstrap is None:
                own = cleanup.enter_context(OwnBroker(self._work / entry.name))
            direct = own.address if own else str(self._bootstrap)
            tap = cleanup.enter_context(Tap(direct))
            site = Site(
                membership=entry.membership,
                protocol=entry.protocol,
                tap=tap.address,
                direct=direct,
                reference=ConfluentDriver(direct, api_versions(direct)),
                own=own,
                session_ms=SESSION_MS if own else _FOREIGN_SESSION_MS[entry.protocol],
                logs=self._work,
            )
            for scenario in scenarios:
                outcomes[scenario.title] = self._ask(entry, scenario, site)
            entry.result.seen |= tap.seen
        marks = ", ".join(f"{s.slug} {outcomes[s.title].status.value}" for s in scenarios)
        self._say(f"{entry.name}: {marks} in {time.monotonic() - began:.1f} s")

    def _ask(self, entry: _Entry, scenario: GroupScenario, site: Site) -> Outcome:
        counts: list[str] = []
        trial = Trial(site, f"{self._prefix}-{entry.name}-{scenario.slug}")
        with trial:
            outcome = attempt(lambda: counts.append(scenario.run(trial)))
        if outcome.status is Status.FAILED:
            self._say(f"{entry.name}: {scenario.title}: {outcome.status.value}: {outcome.note}")
            with (self._work / f"{entry.name}.failures").open("a") as log:
                log.write(f"{scenario.title}\n{outcome.trace}\n")
            _require_broker(site)
        if not self._keep:
            for topic in trial.topics:
                attempt(partial(site.reference.delete_topic, topic))
        return replace(outcome, count=counts[0]) if counts else outcome


def _require_broker(site: Site) -> None:
    try:
        api_versions(site.direct)
    except OSError as error:
        said = f": {site.own.log.read_text(errors='replace')[-300:]}" if site.own else ""
        raise BrokerError(f"no broker answers at {site.direct} any more: {error}{said}") from error
