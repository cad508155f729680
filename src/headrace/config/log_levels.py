"""How much each logger of this process says, changeable while it runs.

Loggers have the names of the modules that log, and a level reaches what is below it: one set on `headrace.replication`
counts for `headrace.replication.fetcher`, unless that has its own. ROOT is above all of them. Levels have Kafka's
names; nothing is logged below DEBUG, so that TRACE shows the same.
"""

import sys
from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Final

ROOT: Final = "ROOT"
LEVELS: Final[Mapping[str, int]] = MappingProxyType(
    {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 50}
)
"""Kafka's names of levels, and their numbers in Python."""
_PACKAGE: Final = __name__.partition(".")[0]
_LOGGER_NAMES: Final = ("log", "logger")


class LogLevels:
    """The levels that are set, by the name of the logger. ROOT always has one."""

    def __init__(self, root: str = "INFO") -> None:
        self._set = {ROOT: root}
        self._numbers: dict[str, int] = {}

    def set(self, logger: str, level: str) -> None:
        """From now on the logger, and what is below it, logs at that level of `LEVELS` and above."""
        self._set[logger] = level
        self._numbers = {}

    def reset(self, logger: str) -> None:
        """From now on the logger has the level of the one above it."""
        self._set.pop(logger, None)
        self._numbers = {}

    def of(self, logger: str) -> str:
        """The level at which a logger logs."""
        while logger and logger not in self._set:
            logger = logger.rpartition(".")[0]
        return self._set[logger or ROOT]

    def allows(self, logger: str, number: int) -> bool:
        """Whether a line at a level, as Python numbers it, is to be logged."""
        least = self._numbers.get(logger)
        if least is None:
            least = self._numbers[logger] = LEVELS[self.of(logger)]
        return number >= least


PROCESS_LEVELS: Final = LogLevels()
"""Of this process: its log lines go by these."""


def loggers() -> list[str]:
    """ROOT, the modules of this process that log, and the packages they are in."""
    names = {ROOT}
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{_PACKAGE}.") and any(_is_logger(vars(module).get(each)) for each in _LOGGER_NAMES):
            while name:
                names.add(name)
                name = name.rpartition(".")[0]
    return sorted(names)


def _is_logger(value: object) -> bool:
    """Modules and functions have that name, too."""
    return value is not None and not isinstance(value, ModuleType) and not callable(value)
