"""Scrapes of a monitoring port."""

import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

SCRAPE_SECONDS = 30.0


class Scrape(NamedTuple):
    """What was scraped."""

    kinds: Mapping[str, str]
    """Of all metrics that were named, with `_total` as the table has it."""
    values: Mapping[tuple[str, frozenset[tuple[str, str]]], float]

    def __call__(self, name: str, **labels: str) -> float:
        """One value."""
        return self.values[name, frozenset(labels.items())]

    def sum(self, name: str) -> float:
        """Of a metric over all its labels."""
        return sum(value for (found, _), value in self.values.items() if found == name)

    def names(self) -> set[str]:
        """Of metrics that have a value; a histogram by its own name."""
        found = {name for name, _ in self.values}
        return {name for name in self.kinds if name in found or f"{name}_count" in found}


def parse(text: str) -> Scrape:
    """Prometheus' text."""
    families = list(text_string_to_metric_families(text))
    kinds = {f"{f.name}_total" if f.type == "counter" else f.name: f.type for f in families}
    return Scrape(kinds, {(s.name, frozenset(s.labels.items())): s.value for f in families for s in f.samples})


def scrape(url: str) -> Scrape:
    """What a port tells now."""
    return parse(get(f"{url}/metrics")[1])


def get(url: str) -> tuple[int, str]:
    """Status and body."""
    try:
        with urllib.request.urlopen(url, timeout=SCRAPE_SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
