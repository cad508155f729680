"""Logs of a server process: one line per event, to stderr; stdout belongs to results."""

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

_NUMBERS: Final = {LogLevel.DEBUG: 10, LogLevel.INFO: 20, LogLevel.WARNING: 30, LogLevel.ERROR: 40}


def configure_logs(format_: LogFormat, level: LogLevel, node: int | None = None) -> None:
    """Set up structlog for this process; lines of one broker among several bear its number."""
    import structlog

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
            named,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_NUMBERS[level]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
