"""What the brokers of a cluster have said of their health, read: who is silent, what is wrong, who cannot serve."""

from collections.abc import Iterator
from typing import NamedTuple

from headrace.health import HealthReport, Severity


class Unheard(NamedTuple):
    """A broker that did not say how it is."""

    reason: str


BrokerReports = dict[int, HealthReport | Unheard]
"""What each broker said, by its number."""


def not_ready(reports: BrokerReports) -> Iterator[str]:
    """The brokers that cannot serve, one line each, with the reason."""
    for broker, report in sorted(reports.items()):
        if isinstance(report, Unheard):
            yield f"broker {broker} ({report.reason})"
        elif not report.ready:
            problems = [f"{p.title}: {p.message}" for p in report.problems if p.keeps_from_ready]
            yield f"broker {broker} ({'; '.join(problems) or 'it is not ready'})"


def complaints(reports: BrokerReports, worst: Severity = Severity.CRITICAL) -> Iterator[str]:
    """What keeps a cluster from being well, one line each: brokers that say nothing, and problems that are as bad."""
    for broker, report in sorted(reports.items()):
        if isinstance(report, Unheard):
            yield f"broker {broker}: {report.reason}"
            continue
        for problem in report.problems:
            if problem.severity is worst or problem.keeps_from_ready:
                yield f"broker {broker}: {problem.title}: {problem.message}"
