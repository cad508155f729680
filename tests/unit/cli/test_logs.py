"""What a process logs, and that its levels can be changed while it runs."""

import json
import subprocess
import sys

SCRIPT = """
import structlog
from headrace.cli.logs import LogFormat, LogLevel, configure_logs
from headrace.config.log_levels import PROCESS_LEVELS
configure_logs(LogFormat.TEXT, LogLevel.WARNING, node=7)
one, two = structlog.get_logger("headrace.one"), structlog.get_logger("headrace.two")
def lines(number):
    for log in (one.bind(of="one"), two.bind(of="two")):  # what is the same would be counted, not repeated
        log.debug(f"debug {number}")
        log.info(f"info {number}")
        log.warning(f"warning {number}")
lines(1)
PROCESS_LEVELS.set("headrace.one", "DEBUG")
PROCESS_LEVELS.set("headrace.two", "ERROR")
lines(2)
PROCESS_LEVELS.reset("headrace.one")
lines(3)
"""


def test_levels_change_for_loggers_that_have_logged_already() -> None:
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    events = [line.partition('event="')[2].partition('"')[0] for line in ended.stderr.splitlines()]
    assert events == ["warning 1", "warning 1", "debug 2", "info 2", "warning 2", "warning 3"]
    assert all(" node=7 " in line for line in ended.stderr.splitlines())


LIBRARY = """
import logging, sys
from headrace.cli.logs import LogFormat, LogLevel, configure_logs
configure_logs(LogFormat.JSON, LogLevel.INFO)
configure_logs(LogFormat.JSON, LogLevel.INFO)
log = logging.getLogger("headrace.handlers")
log.debug("left out")
log.info("message %d was tried again", 7)
logging.basicConfig(format="own: %(message)s", level=logging.WARNING)
log.warning("as the application wants it")
"""


def test_what_the_client_library_logs_looks_like_all_else_unless_an_application_has_its_own_logging() -> None:
    ended = subprocess.run([sys.executable, "-c", LIBRARY], capture_output=True, text=True, check=True)
    first, second = ended.stderr.splitlines()
    told = json.loads(first)
    assert (told["event"], told["level"]) == ("message 7 was tried again", "info")
    assert second == "own: as the application wants it"
