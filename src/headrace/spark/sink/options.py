"""The options of `format("headrace")` when writing: those of Spark's Kafka sink, by the same names, and ours.

Spark hands the names over in lower case, and users write them as they like, so case never matters.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from headrace.client.columnar.settings import ClientSettings
from headrace.config.names import shown
from headrace.config.setting import MAX_LONG, ConfigError
from headrace.formats.writing import ENCODING_OPTIONS, EncodingOptions, read_encoding

from ..client_options import BOOTSTRAP_NAMES, PREFIX, bootstrap_servers, check_settings
from ..source.options import nearest_option
from ..units import whole_number

DECISIONS_TOPIC: Final = "__headrace_sink_decisions"

OPTIONS: Final[dict[str, str]] = {
    "topic": "where all rows go, whatever a column topic says",
    "delivery": "auto, exactly-once or at-least-once",
    "tornBatch": "fail or rewrite: what to do with a batch of which the cluster dropped a part",
    "decisionsTopic": "where exactly-once streams keep their decisions; it is made when it is not there",
    "txnAppId": "batch writes only: a name under which each txnVersion is written once, as in foreachBatch",
    "txnVersion": "batch writes only: a number that grows from one write to the next, such as the id of a micro-batch",
    **ENCODING_OPTIONS,
}
"""What can be said, beside the client's own settings as `kafka.<name>`."""

_OTHERS: Final = frozenset({"checkpointlocation", "queryname", *BOOTSTRAP_NAMES})
"""Options of a streaming query that Spark shows to its sink, and other names for the brokers."""

_TRANSACTION_TIMEOUT_MS: Final = "900000"
"""The longest that brokers allow unless they are told otherwise: a transaction must outlast its batch."""

_REFUSED: Final = {
    "key.serializer": "keys are written as they are; cast or encode the column",
    "value.serializer": "values are written as they are; cast or encode the column",
    "transactional.id": "the sink names its transactions itself; see option delivery",
    "interceptor.classes": "the sink runs no Java code",
    "partitioner.class": "the sink runs no Java code; name partitions in a column partition",
    "partitioner": "rows go where the Java client sends them; name partitions in a column partition",
}


class Delivery(StrEnum):
    """What the sink promises."""

    AUTO = "auto"
    """Exactly once where the cluster has transactions, at least once elsewhere."""
    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


class AppVersion(NamedTuple):
    """What tells a batch write that is repeated from a new one."""

    app_id: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """All that a user said about where and how to write."""

    client: Mapping[str, str]
    """Settings of the columnar client, by Kafka's names."""
    topic: str | None = None
    delivery: Delivery = Delivery.AUTO
    rewrite_torn: bool = False
    decisions_topic: str = DECISIONS_TOPIC
    checkpoint: str | None = None
    """Where the query keeps its own state, if it was said with the query: no other query has the same."""
    version: "AppVersion | None" = None
    encoding: EncodingOptions | None = None
    """How values are made of their columns; None where they are written as they are."""

    @property
    def weakness(self) -> str | None:
        """The client setting that rules transactions out."""
        settings = ClientSettings(self.client)
        if settings["acks"] not in ("all", "-1"):
            return f"kafka.acks={settings['acks']}"
        return "kafka.enable.idempotence=false" if settings["enable.idempotence"] is False else None


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """The options a user gave; `ConfigError` names the one that cannot be and says what to write instead."""
    options = {name.lower(): value.strip() for name, value in given.items()}
    _refuse_unknown(options)
    parsed = SinkOptions(
        client=_client(options),
        topic=_topic(options),
        delivery=Delivery(_one_of(options, "delivery", tuple(Delivery), Delivery.AUTO)),
        rewrite_torn=_one_of(options, "tornBatch", ("fail", "rewrite"), "fail") == "rewrite",
        decisions_topic=options.get("decisionstopic") or DECISIONS_TOPIC,
        checkpoint=options.get("checkpointlocation"),
        version=_version(options),
        encoding=read_encoding(options),
    )
    if parsed.delivery is Delivery.EXACTLY_ONCE and parsed.weakness is not None:
        raise ConfigError(f"option delivery=exactly-once needs acknowledged writes: remove {parsed.weakness}")
    return parsed


def _refuse_unknown(options: Mapping[str, str]) -> None:
    known = {name.lower() for name in OPTIONS} | _OTHERS
    for name in options:
        if name == "path":
            raise ConfigError("a topic has no path: call save() or start() without one, and name it with option topic")
        if name not in known and not name.startswith(PREFIX):
            raise ConfigError(f"unknown option {shown(name)} of the sink{nearest_option(name, OPTIONS)}")


def _client(options: Mapping[str, str]) -> dict[str, str]:
    given = {name.removeprefix(PREFIX): value for name, value in options.items() if name.startswith(PREFIX)}
    for name in given:
        if name in _REFUSED:
            raise ConfigError(f"option {PREFIX}{name} cannot be set: {_REFUSED[name]}")
    settings = {"transaction.timeout.ms": _TRANSACTION_TIMEOUT_MS} | given
    settings["bootstrap.servers"] = bootstrap_servers(options)
    check_settings(settings)
    return settings


def _topic(options: Mapping[str, str]) -> str | None:
    topic = options.get("topic")
    if topic == "":
        raise ConfigError("option topic is empty: name a topic, or leave the option out and have a column topic")
    return topic


def _version(options: Mapping[str, str]) -> AppVersion | None:
    app_id, version = options.get("txnappid"), options.get("txnversion")
    if not app_id and not version:
        return None
    if not app_id or not version:
        raise ConfigError("options txnAppId and txnVersion belong together: give both, or none")
    try:
        return AppVersion(app_id, whole_number(0, MAX_LONG)(version))
    except ValueError as error:
        raise ConfigError(f"option txnVersion must be {error}, not '{shown(version)}'") from None


def _one_of(options: Mapping[str, str], name: str, allowed: tuple[str, ...], default: str) -> str:
    value = options.get(name.lower(), default).lower()
    if value not in allowed:
        raise ConfigError(f"option {name} must be {', '.join(allowed[:-1])} or {allowed[-1]}, not '{shown(value)}'")
    return value
