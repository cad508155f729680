"""As much of PromQL as our alert rules use, evaluated on series in promtool's notation.

`promtool` is not installed everywhere; where it is, the same tests are run with it, which keeps this honest. `rate` and
`increase` do not extrapolate exactly as Prometheus does.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, TypeAlias

LOOKBACK_SECONDS: Final = 300.0
Labels: TypeAlias = frozenset[tuple[str, str]]
Vector: TypeAlias = dict[Labels, float]
Value: TypeAlias = Vector | float
_TOKEN: Final = re.compile(
    r'\s*(?:(?P<number>\d+(?:\.\d+)?(?![\w.]))|(?P<name>[a-zA-Z_:][\w:]*)|(?P<text>"[^"]*")|(?P<range>\[\w+\])'
    r"|(?P<op>==|!=|<=|>=|=~|[<>/*=(){},]))"
)
_COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
}
_AGGREGATES: Final[Mapping[str, Callable[[list[float]], float]]] = {"sum": sum, "count": len, "max": max, "min": min}


def seconds(text: str) -> float:
    """`1h30m` and the like."""
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    return float(sum(int(count) * units[unit] for count, unit in re.findall(r"(\d+)([smhd])", text)))


def expanded(text: str) -> list[float | None]:
    """Values in promtool's notation: `0x3 1+2x4 _x2`; None where there is no sample."""
    values: list[float | None] = []
    for part in text.split():
        found = re.fullmatch(r"(?P<first>[-\d.]+|_)(?:(?P<step>[+-][\d.]+))?(?:x(?P<times>\d+))?", part)
        assert found is not None, part
        times = int(found["times"] or 0)
        if found["first"] == "_":
            values += [None] * max(times, 1)
        else:
            first, step = float(found["first"]), float(found["step"] or 0)
            values += [first + step * number for number in range(times + 1)]
    return values


@dataclass(frozen=True, slots=True)
class Series:
    """Samples of one name and set of labels, from time 0 on."""

    name: str
    labels: Labels
    values: list[float | None]

    @classmethod
    def parse(cls, text: str, values: str) -> "Series":
        name, _, labels = text.partition("{")
        return cls(name, frozenset(re.findall(r'(\w+)="([^"]*)"', labels)), expanded(values))


class Evaluation:
    """Expressions at one time."""

    def __init__(self, series: Iterable[Series], interval: float, now: float) -> None:
        self._series = list(series)
        self._interval = interval
        self._now = now
        self._tokens: list[tuple[str, str]] = []

    def __call__(self, expression: str) -> Value:
        self._tokens = []
        at = 0
        while at < len(expression.rstrip()):
            found = _TOKEN.match(expression, at)
            assert found is not None, expression[at:]
            assert found.lastgroup is not None
            self._tokens.append((found.lastgroup, found[found.lastgroup]))
            at = found.end()
        value = self._comparison()
        assert not self._tokens, self._tokens
        return value

    def _next(self) -> str:
        return self._tokens[0][1] if self._tokens else ""

    def _take(self, expected: str | None = None) -> str:
        _, text = self._tokens.pop(0)
        assert expected in (None, text), f"{text} instead of {expected}"
        return text

    def _comparison(self) -> Value:
        left = self._product()
        if self._next() not in _COMPARISONS:
            return left
        holds = _COMPARISONS[self._take()]
        right = self._product()
        assert isinstance(left, dict)
        assert isinstance(right, float)
        return {labels: value for labels, value in left.items() if holds(value, right)}

    def _product(self) -> Value:
        left = self._primary()
        while self._next() == "/":
            self._take()
            right = self._primary()
            assert isinstance(left, dict)
            assert isinstance(right, dict)
            left = {key: value / right[key] for key, value in left.items() if right.get(key)}
        return left

    def _primary(self) -> Value:
        kind, text = self._tokens[0]
        if kind == "number":
            return float(self._take())
        self._take()
        if text in _AGGREGATES:
            return self._aggregate(_AGGREGATES[text])
        if text in ("rate", "increase"):
            self._take("(")
            grown = self._range_selector(self._take())
            self._take(")")
            return {labels: (grows if text == "increase" else grows / span) for labels, (grows, span) in grown.items()}
        if text == "histogram_quantile":
            self._take("(")
            quantile = float(self._take())
            self._take(",")
            buckets = self._comparison()
            self._take(")")
            assert isinstance(buckets, dict)
            return _quantiles(quantile, buckets)
        return {s.labels: v for s in self._selected(text) if (v := self._latest(s)) is not None}

    def _aggregate(self, reduce: Callable[[list[float]], float]) -> Vector:
        self._take("by")
        self._take("(")
        names = []
        while (name := self._take()) != ")":
            if name != ",":
                names.append(name)
        self._take("(")
        inner = self._comparison()
        self._take(")")
        assert isinstance(inner, dict)
        groups: dict[Labels, list[float]] = {}
        for labels, value in inner.items():
            groups.setdefault(frozenset(pair for pair in labels if pair[0] in names), []).append(value)
        return {labels: float(reduce(values)) for labels, values in groups.items()}

    def _selected(self, name: str) -> list[Series]:
        found = [series for series in self._series if series.name == name]
        if self._next() == "{":
            self._take()
            while self._next() != "}":
                label, op, text = self._take(), self._take(), self._take().strip('"')
                pattern = re.compile(text if op == "=~" else re.escape(text))
                found = [s for s in found if pattern.fullmatch(dict(s.labels).get(label, ""))]
                if self._next() == ",":
                    self._take()
            self._take("}")
        return found

    def _samples(self, series: Series, span: float) -> list[tuple[float, float]]:
        timed = ((number * self._interval, value) for number, value in enumerate(series.values))
        return [(at, value) for at, value in timed if value is not None and self._now - span <= at <= self._now]

    def _latest(self, series: Series) -> float | None:
        samples = self._samples(series, LOOKBACK_SECONDS)
        return samples[-1][1] if samples else None

    def _range_selector(self, name: str) -> dict[Labels, tuple[float, float]]:
        """By how much counters grew in a range, extrapolated to all of it, and how long it is."""
        selected = self._selected(name)
        span = seconds(self._take().strip("[]"))
        grown: dict[Labels, tuple[float, float]] = {}
        for series in selected:
            samples = self._samples(series, span)
            if len(samples) >= 2:
                values = [value for _, value in samples]
                steps = pairwise(values)
                grows = sum(after - before if after >= before else after for before, after in steps)
                grown[series.labels] = (grows * span / (samples[-1][0] - samples[0][0]), span)
        return grown


def _quantiles(quantile: float, buckets: Vector) -> Vector:
    groups: dict[Labels, list[tuple[float, float]]] = {}
    for labels, value in buckets.items():
        bound = dict(labels)["le"]
        key = frozenset(pair for pair in labels if pair[0] != "le")
        groups.setdefault(key, []).append((math.inf if bound == "+Inf" else float(bound), value))
    return {key: found for key, group in groups.items() if not math.isnan(found := _quantile(quantile, sorted(group)))}


def _quantile(quantile: float, buckets: list[tuple[float, float]]) -> float:
    total = buckets[-1][1]
    if not total:
        return math.nan
    wanted = quantile * total
    below, lower = 0.0, 0.0
    for bound, count in buckets:
        if count >= wanted:
            if math.isinf(bound):
                return lower
            return lower + (bound - lower) * (wanted - below) / (count - below or 1)
        below, lower = count, bound
    return lower


def firing(rule: Mapping[str, Any], series: list[Series], at: float, interval: float, every: float) -> set[Labels]:
    """The labels for which an alert rule fires at a time."""
    since: dict[Labels, float] = {}
    held = seconds(str(rule.get("for", "0s")))
    for number in range(int(at // every) + 1):
        now = number * every
        value = Evaluation(series, interval, now)(rule["expr"])
        assert isinstance(value, dict)
        since = {labels: since.get(labels, now) for labels in value}
    fires = [dict(labels) for labels, began in since.items() if at - began >= held]
    return {frozenset({**labels, **rule["labels"]}.items()) for labels in fires}


def metric_names(expression: str) -> set[str]:
    """The metrics that an expression is about."""
    words = re.findall(r"[a-zA-Z_:][\w:]*", re.sub(r'\{[^}]*\}|\[[^\]]*\]|"[^"]*"|by \([^)]*\)', " ", expression))
    return {word for word in words if word not in {"rate", "increase", "histogram_quantile", "by", *_AGGREGATES}}
