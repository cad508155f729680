"""The words of a benchmark: a work has figures, is sampled in rounds, and its figures may have aims."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .setting import Setting


class BenchError(Exception):
    """A run that cannot be counted: says what went wrong and where to look."""


class Skipped(BenchError):
    """A work that cannot be done here, for want of something that is no part of the project: says of what."""


class Of(Enum):
    """What an aim is about: the broker's figure divided by its ceiling's, or the broker's figure itself."""

    RATIO = "of the ceiling"
    VALUE = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """A bound to keep."""

    of: Of
    bound: float
    at_least: bool

    def is_met(self, broker: float, ratio: float | None) -> bool | None:
        """None where there is nothing to compare with."""
        value = ratio if self.of is Of.RATIO else broker
        if value is None:
            return None
        return value >= self.bound if self.at_least else value <= self.bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number of a work."""

    key: str
    label: str
    unit: str
    aim: Aim | None = None


Sample = dict[str, float]
"""The figures of one round by their keys; `CPU` holds the server's processor time per unit of work."""

CPU = "cpu"

Measure = Callable[["Setting"], Sample]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Something the broker does, and the bare server that does the least that could be called the same."""

    name: str
    title: str
    against: str
    """What the ceiling is, in words."""
    figures: tuple[Figure, ...]
    broker: Measure
    ceiling: Measure | None = None
    cpu_unit: str = ""
    rounds: int | None = None
    """How often it is sampled, where that is not what the run says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of a work as measured: medians over the rounds, and each round's value."""

    work: str
    title: str
    against: str
    figure: Figure
    broker: float
    ceiling: float | None
    ratio: float | None
    is_met: bool | None
    broker_rounds: list[float]
    ceiling_rounds: list[float]
    broker_cpu: float | None
    ceiling_cpu: float | None
    cpu_unit: str


def rows_of(work: Work, broker: list[Sample], ceiling: list[Sample]) -> list[Row]:
    """What the rounds of a work come to. The ratio is the median of the rounds' own ratios."""
    return [_row(work, figure, broker, ceiling, is_first=not n) for n, figure in enumerate(work.figures)]


def _row(work: Work, figure: Figure, broker: list[Sample], ceiling: list[Sample], *, is_first: bool) -> Row:
    ours = [sample[figure.key] for sample in broker]
    theirs = [sample[figure.key] for sample in ceiling if figure.key in sample]
    ratio = median(a / b for a, b in zip(ours, theirs, strict=True)) if theirs and all(theirs) else None
    value = median(ours)
    return Row(
        work=work.name,
        title=work.title,
        against=work.against,
        figure=figure,
        broker=value,
        ceiling=median(theirs) if theirs else None,
        ratio=ratio,
        is_met=figure.aim.is_met(value, ratio) if figure.aim is not None else None,
        broker_rounds=ours,
        ceiling_rounds=theirs,
        broker_cpu=_cpu(broker) if is_first else None,
        ceiling_cpu=_cpu(ceiling) if is_first else None,
        cpu_unit=work.cpu_unit,
    )


def _cpu(samples: list[Sample]) -> float | None:
    values = [sample[CPU] for sample in samples if CPU in sample]
    return median(values) if values else None
