"""A broker's report of its own health."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from .problem import Problem, Severity

_ORDER: Final = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.OK: 2}


class NotAReport(ValueError):
    """What came is not a health report."""


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
    problems: tuple[Problem, ...] = ()
    """The worst first."""
    numbers: Mapping[str, int | float] = field(default_factory=dict)
    """What the problems were found from, and what else is worth showing: partitions, disk space, clock."""

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
    )


def worst_first(problems: list[Problem]) -> tuple[Problem, ...]:
    """Problems in the order in which someone should read them."""
    return tuple(sorted(problems, key=lambda p: _ORDER[p.severity]))


def _known(entries: list[Mapping[str, Any]]) -> list[Problem]:
    found = []
    for entry in entries:
        try:
            found.append(Problem.from_json(entry))
        except ValueError:
            continue
    return found


def _number(value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return value
