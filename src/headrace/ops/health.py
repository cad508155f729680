"""The health of every broker of a cluster, each by its own account: all are asked at once, with a deadline each."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, TypeGuard

from headrace.client.columnar.connect import open_channel
from headrace.client.core.errors import AuthenticationRefused, ConnectionLost
from headrace.client.core.handshake import ConnectionSettings
from headrace.client.core.health import DESCRIBE_HEALTH, VERSION, describe_health_request, read_health
from headrace.health import HealthReport, ProblemCode
from headrace.net.address import Address
from headrace.protocol.errors import CodedError, ProtocolViolation

from .health_reports import BrokerReports, Unheard, complaints
from .overview import BrokerView

__all__ = [
    "BrokerReports",
    "Unheard",
    "ask_all",
    "ask_health",
    "complaints",
    "hopeless",
    "is_levelled",
    "reasons",
    "with_version",
]

SECONDS: Final = 2.0
"""How long a broker may take for each step of its answer."""
_AT_ONCE: Final = 32
_LEVELS: Final = ("feature_level_min", "feature_level_max")


def ask_health(address: Address, settings: ConnectionSettings, seconds: float = SECONDS) -> HealthReport | Unheard:
    """What the broker at an address says of itself."""
    try:
        channel = open_channel(address, replace(settings, connect_timeout=seconds, request_timeout=seconds))
    except (ConnectionLost, AuthenticationRefused) as error:
        return Unheard(str(error))
    try:
        channel.send(DESCRIBE_HEALTH, VERSION, describe_health_request())
        return read_health(channel.receive().body)
    except (ConnectionLost, CodedError, ProtocolViolation) as error:
        return Unheard(f"it does not say how it is: {error}")
    finally:
        channel.close()


def ask_all(brokers: Mapping[int, Address], settings: ConnectionSettings, seconds: float = SECONDS) -> BrokerReports:
    """What all of these brokers say, asked side by side."""
    if not brokers:
        return {}
    with ThreadPoolExecutor(min(len(brokers), _AT_ONCE), thread_name_prefix="health") as pool:
        asked = {broker: pool.submit(ask_health, address, settings, seconds) for broker, address in brokers.items()}
        return {broker: answer.result() for broker, answer in asked.items()}


def hopeless(addresses: Sequence[Address], settings: ConnectionSettings, seconds: float = SECONDS) -> str:
    """Why it is no use to wait for a cluster whose brokers answer; empty where it may be, or they do not say.

    Without its store a cluster elects nobody and changes nothing; one broker that has it is enough.
    """
    heard = _heard(addresses, settings, seconds)
    lost = [p for report in heard for p in report.problems if p.code is ProblemCode.STORE_UNREACHABLE]
    if not heard or len(lost) < len(heard):
        return ""
    return f"{lost[0].title}: {lost[0].message} ({lost[0].subject}); {lost[0].advice}"


def reasons(addresses: Sequence[Address], settings: ConnectionSettings, seconds: float = SECONDS) -> str:
    """What may keep records from being written, by the brokers at these addresses; empty where they know of nothing."""
    return "; ".join(complaints({report.broker_id: report for report in _heard(addresses, settings, seconds)}))


def _heard(addresses: Sequence[Address], settings: ConnectionSettings, seconds: float) -> list[HealthReport]:
    answers = ask_all(dict(enumerate(addresses)), settings, seconds).values()
    return [answer for answer in answers if isinstance(answer, HealthReport)]


def is_levelled(report: HealthReport | Unheard | None) -> TypeGuard[HealthReport]:
    """Whether a broker has told the feature levels it speaks; one of an earlier release has none."""
    return isinstance(report, HealthReport) and all(name in report.numbers for name in ("feature_level", *_LEVELS))


def with_version(broker: BrokerView, report: HealthReport | Unheard | None) -> BrokerView:
    """A broker with what it has told of its software."""
    if not isinstance(report, HealthReport):
        return broker
    levels = (int(report.numbers[_LEVELS[0]]), int(report.numbers[_LEVELS[1]])) if is_levelled(report) else None
    return replace(broker, version=report.version, levels=levels)
