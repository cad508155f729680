import logging

import headrace.server.dispatch  # noqa: F401 - a module that logs
from headrace.config.log_levels import LEVELS, ROOT, LogLevels, loggers


def test_a_level_reaches_what_is_below_it_unless_that_has_its_own() -> None:
    levels = LogLevels("WARN")
    levels.set("headrace.replication", "DEBUG")
    levels.set("headrace.replication.isr", "ERROR")
    assert levels.of("headrace.replication.fetcher") == "DEBUG"
    assert levels.of("headrace.replication.isr") == "ERROR"
    assert levels.of("headrace.replicationist") == levels.of(ROOT) == levels.of("") == "WARN"
    levels.reset("headrace.replication")
    assert levels.of("headrace.replication.fetcher") == "WARN"


def test_a_change_counts_for_the_next_line() -> None:
    levels = LogLevels("INFO")
    assert not levels.allows("headrace.net.tcp", logging.DEBUG)
    levels.set("headrace.net", "TRACE")
    assert levels.allows("headrace.net.tcp", logging.DEBUG)
    levels.set(ROOT, "FATAL")
    assert levels.allows("headrace.net.tcp", logging.DEBUG)
    assert not levels.allows("headrace.server", logging.ERROR)
    assert levels.allows("headrace.server", logging.CRITICAL)


def test_levels_are_kafkas() -> None:
    assert set(LEVELS) == {"TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"}


def test_loggers_are_the_modules_that_log_and_their_packages() -> None:
    found = loggers()
    assert {ROOT, "headrace", "headrace.server", "headrace.server.dispatch"} <= set(found)
    assert "headrace.protocol" not in found
