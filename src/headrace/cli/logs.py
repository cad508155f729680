"""Logs of a server process: one line per event, to stderr; stdout belongs to results."""

import logging
import sys
from enum import StrEnum
from typing import Annotated, Any, Final

import typer


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


FormatOption = Annotated[LogFormat, typer.Option("--log-format", help="How log lines look.")]
LevelOption = Annotated[LogLevel, typer.Option("--log-level", help="The least that is logged.")]

_KAFKA_LEVELS: Final = {
    LogLevel.DEBUG: "DEBUG",
    LogLevel.INFO: "INFO",
    LogLevel.WARNING: "WARN",
    LogLevel.ERROR: "ERROR",
}
_NUMBERS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
"""By what a logger calls them."""


def configure_logs(format_: LogFormat, level: LogLevel, node: int | None = None) -> None:
    """Set up structlog for this process; lines of one broker among several bear its number.

    The level is that of the logger ROOT; brokers change it, and those of other loggers, when they are asked to
    (AlterConfigs of BROKER_LOGGER).
    """
    import structlog

    from headrace.config.log_levels import PROCESS_LEVELS, ROOT

    from .repeats import Repeats

    PROCESS_LEVELS.set(ROOT, _KAFKA_LEVELS[level])

    class NamedOutput(structlog.WriteLogger):
        """Where a logger's lines go, with the logger's name."""

        def __init__(self, name: str = "") -> None:
            super().__init__(sys.stderr)
            self.name = name

    def leveled(logger: Any, method: str, event: Any) -> Any:
        if not PROCESS_LEVELS.allows(logger.name, _NUMBERS.get(method, 0)):
            raise structlog.DropEvent
        return event

    def named(_logger: Any, _method: str, event: Any) -> Any:
        return event if node is None else {"node": node, **event}

    last: Any = (
        structlog.processors.JSONRenderer()
        if format_ is LogFormat.JSON
        else structlog.processors.LogfmtRenderer(
            key_order=["timestamp", "level", "node", "event"], drop_missing=True, bool_as_flag=False
        )
    )
    structlog.configure(
        processors=[
            leveled,
            Repeats(),
            named,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(0),
        logger_factory=NamedOutput,
        cache_logger_on_first_use=True,
    )
    _take_in_clients(structlog)


def _take_in_clients(structlog: Any) -> None:
    """Have the lines of the client library, which logs as libraries do, look like all others; but where an application
    has set up logging itself, they are there."""

    class ToProcess(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if not logging.getLogger().handlers:
                about = {"exc_info": record.exc_info} if record.exc_info else {}
                structlog.get_logger(record.name).log(record.levelno, record.getMessage(), **about)

    library = logging.getLogger("headrace")
    library.handlers[:] = [each for each in library.handlers if type(each).__name__ != ToProcess.__name__]
    library.addHandler(ToProcess())
    library.setLevel(logging.DEBUG)
