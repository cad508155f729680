"""What can be set on a subscription to the metrics of clients (KIP-714), and what it may be."""

from collections.abc import Mapping
from typing import Final

from headrace.protocol.errors import CodedError, ErrorCode

from .names import nearest, shown
from .setting import ConfigError, Setting, Type, between

_NO_EFFECT: Final = "Kept, without effect here: clients are not asked for their metrics yet."
_MATCH: Final = "match"
_PATTERN_NAMES: Final = (
    "client_id",
    "client_instance_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
CLIENT_METRICS_SETTINGS: Final[dict[str, Setting]] = {
    setting.name: setting
    for setting in (
        Setting(
            name="interval.ms",
            type=Type.INT,
            default="300000",
            rule=between(100, 3_600_000),
            doc=f"How often clients send the metrics. {_NO_EFFECT}",
        ),
        Setting(
            name=_MATCH,
            type=Type.LIST,
            default="",
            doc=f"Which clients send them, as patterns like client_id=orders.*; all where there is none. {_NO_EFFECT}",
        ),
        Setting(
            name="metrics",
            type=Type.LIST,
            default="",
            doc=f"The metrics, by the first part of their names. {_NO_EFFECT}",
        ),
    )
}
"""By name."""


def client_metrics_setting(name: str) -> Setting:
    """The setting of that name; INVALID_REQUEST, as in Kafka, when there is none."""
    setting = CLIENT_METRICS_SETTINGS.get(name)
    if setting is None:
        hint = nearest(name, CLIENT_METRICS_SETTINGS)
        raise CodedError(ErrorCode.invalid_request, f"Unknown client metrics configuration: {shown(name)}{hint}")
    return setting


def validate_client_metrics(overrides: Mapping[str, str]) -> None:
    """Raises `CodedError` unless a subscription may have these."""
    try:
        for name, text in overrides.items():
            client_metrics_setting(name).parse(text)
    except ConfigError as error:
        raise CodedError(ErrorCode.invalid_request, str(error)) from None
    for pattern in filter(None, (part.strip() for part in overrides.get(_MATCH, "").split(","))):
        _check_pattern(pattern)


def _check_pattern(pattern: str) -> None:
    from headrace.protocol.patterns import Pattern  # a library that nothing else here needs

    name, equals, expression = pattern.partition("=")
    try:
        if not equals or name.strip() not in _PATTERN_NAMES:
            raise ValueError(f"must be one of {', '.join(_PATTERN_NAMES)}, then = and a regular expression")
        Pattern(expression)
    except ValueError as error:
        raise CodedError(
            ErrorCode.invalid_config, f"Illegal client matching pattern: {shown(pattern)}: {error}"
        ) from None
