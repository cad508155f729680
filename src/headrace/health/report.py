"""A broker's report of its own health."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from .problem import HealthProblem, Severity

_ORDER: Final = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.OK: 2}


class NotAReport(ValueError):
    """What came is not a health report."""


class ListenerReport(NamedTuple):
    """A place where a broker listens."""

    name: str
    protocol: str
    bound: str
    """Where it listens, as HOST:PORT."""
    advertised: str
    """Where others are told to find it; empty where they are not."""
    for_brokers: bool
    """Whether other brokers reach it there."""
    anonymous: bool
    """Whether clients need not show who they are."""
    remote: bool
    """Whether other machines reach it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReport:
    """How a broker is, by its own account."""

    broker_id: int
    cluster_id: str
    version: str
    """Of its software."""
    uptime_seconds: float
    ready: bool
    """Whether it is registered and has no problem of its own that keeps it from serving."""
    problems: tuple[HealthProblem, ...] = ()
    """The worst first."""
    numbers: Mapping[str, int | float] = field(default_factory=dict)
    """What the problems were found from, and what else is worth showing: partitions, disk space, clock."""
    listeners: tuple[ListenerReport, ...] = ()
    """None of a broker of an earlier release, which does not tell."""

    @property
    def severity(self) -> Severity:
        """Of its worst problem; `OK` without any."""
        return min((p.severity for p in self.problems), key=_ORDER.__getitem__, default=Severity.OK)

    def to_json(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "broker_id": self.broker_id,
            "cluster_id": self.cluster_id,
            "version": self.version,
            "uptime_seconds": round(self.uptime_seconds, 3),
            "ready": self.ready,
            "severity": self.severity.value,
            "problems": [p.to_json() for p in self.problems],
            "numbers": dict(self.numbers),
            "listeners": [listener._asdict() for listener in self.listeners],
        }

    @classmethod
    def from_json(cls, values: object) -> "HealthReport":
        """The report that `to_json` wrote; `NotAReport` where it is none.

        Problems of codes that a newer broker has, and this program does not know, are left out; `ready` counts them.
        """
        try:
            return _report(values)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise NotAReport(f"not a health report: {error!r}") from error


def _report(values: Any) -> HealthReport:
    return HealthReport(
        broker_id=int(values["broker_id"]),
        cluster_id=str(values["cluster_id"]),
        version=str(values["version"]),
        uptime_seconds=float(values["uptime_seconds"]),
        ready=bool(values["ready"]),
        problems=worst_first(_known(values["problems"])),
        numbers={str(name): _number(value) for name, value in values["numbers"].items()},
        listeners=tuple(map(_listener, values.get("listeners", ()))),
    )


def _listener(values: Mapping[str, Any]) -> ListenerReport:
    return ListenerReport(
        name=str(values["name"]),
        protocol=str(values["protocol"]),
        bound=str(values["bound"]),
        advertised=str(values["advertised"]),
        for_brokers=bool(values["for_brokers"]),
        anonymous=bool(values["anonymous"]),
        remote=bool(values["remote"]),
    )


def worst_first(problems: list[HealthProblem]) -> tuple[HealthProblem, ...]:
    """Problems in the order in which someone should read them."""
    return tuple(sorted(problems, key=lambda p: _ORDER[p.severity]))


def _known(entries: list[Mapping[str, Any]]) -> list[HealthProblem]:
    problems = []
    for entry in entries:
        try:
            problems.append(HealthProblem.from_json(entry))
        except ValueError:
            continue
    return problems


def _number(value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return value
