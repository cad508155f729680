"""BROKER_LOGGER resources: the levels at which the loggers of this process log, for `handlers.configs`.

A change counts at once, for as long as the process lives; nothing of it is kept. As in Kafka, only
IncrementalAlterConfigs can change them, by SET and DELETE, and ROOT always has a level.
"""

from collections.abc import Sequence
from typing import Any

import structlog

from headrace.config import AlterConfigOp, AlterConfigOpType, ConfigSource, Type, shown
from headrace.config.log_levels import LEVELS, ROOT, LogLevels, loggers
from headrace.config.names import nearest
from headrace.protocol.errors import CodedError, ErrorCode

log = structlog.get_logger(__name__)


def describe_loggers(levels: LogLevels, *, documentation: bool) -> list[dict[str, Any]]:
    """Every logger with the level it logs at."""
    return [
        {
            "name": logger,
            "value": levels.of(logger),
            "read_only": False,
            "config_source": ConfigSource.DYNAMIC_BROKER_LOGGER,
            "is_sensitive": False,
            "synonyms": (),
            "config_type": Type.STRING.value,
            "documentation": "The least that is logged, here and below where nothing else is set."
            if documentation
            else None,
        }
        for logger in loggers()
    ]


def alter_loggers(levels: LogLevels, changes: Sequence[AlterConfigOp], *, validate_only: bool) -> None:
    """All of the changes, or none: `CodedError` says what is wrong with one."""
    known = frozenset(loggers())
    if len({change.name for change in changes}) < len(changes):
        raise CodedError(ErrorCode.invalid_request, "A logger stands more than once in the request; name it once")
    for change in changes:
        _check(change, known)
    if validate_only:
        return
    for change in changes:
        if change.operation is AlterConfigOpType.SET:
            levels.set(change.name, change.value or "")
        else:
            levels.reset(change.name)
        log.info("log level changed", of=change.name, to=levels.of(change.name))


def _check(change: AlterConfigOp, known: frozenset[str]) -> None:
    if change.operation not in (AlterConfigOpType.SET, AlterConfigOpType.DELETE):
        message = f"{change.operation.name} operation is not allowed for the BROKER_LOGGER resource"
        raise CodedError(ErrorCode.invalid_request, message)
    if change.name not in known:
        message = f"Logger {shown(change.name)} does not exist!{nearest(change.name, known)}"
        raise CodedError(ErrorCode.invalid_config, message)
    if change.operation is AlterConfigOpType.DELETE and change.name == ROOT:
        message = f"Removing the log level of the {ROOT} logger is not allowed; set it to one of {', '.join(LEVELS)}"
        raise CodedError(ErrorCode.invalid_request, message)
    if change.operation is AlterConfigOpType.SET and change.value not in LEVELS:
        raise CodedError(
            ErrorCode.invalid_config,
            f"Cannot set the log level of {change.name} to {shown(change.value or 'nothing')} as it is not a supported "
            f"log level. Valid log levels are {', '.join(LEVELS)}",
        )
