"""Settings of the columnar client, by Kafka's names: what each may hold, and the connections they ask for.

Names of librdkafka are taken beside those of the Java client where the two differ (`sasl.mechanisms`,
`ssl.ca.location`). A name that neither has is refused with the nearest one that there is, so that a slip of the pen is
not a setting without effect.
"""

from collections.abc import Mapping
from typing import Any, Final

from headrace.client.core.handshake import ConnectionSettings
from headrace.client.core.sasl import MECHANISMS, credentials
from headrace.config.names import nearest, shown
from headrace.config.setting import ConfigError, Setting, Type, at_least, between, one_of
from headrace.net.address import Address, parse_bootstrap
from headrace.net.tls import TlsSettings, client_context

from ..errors import ClientError
from ..properties import value_in_jaas

MIB: Final = 1 << 20


def _setting(name: str, kind: Type, default: str | None, doc: str, **more: Any) -> Setting:
    return Setting(name=name, type=kind, default=default, doc=doc, **more)


_EVERY: Final = (
    _setting("bootstrap.servers", Type.STRING, None, "HOST:PORT of one or more brokers, with commas between them."),
    _setting("client.id", Type.STRING, "headrace", "What brokers know this client by, in their logs and quotas."),
    _setting("client.rack", Type.STRING, "", "Where this client is: a replica in the same place is read from."),
    _setting(
        "security.protocol",
        Type.STRING,
        "PLAINTEXT",
        "Whether connections have TLS, SASL, both or neither.",
        rule=one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    ),
    _setting("sasl.mechanism", Type.STRING, "PLAIN", "How to authenticate.", rule=one_of(*MECHANISMS)),
    _setting("sasl.username", Type.STRING, None, "The user for PLAIN and SCRAM."),
    _setting("sasl.password", Type.PASSWORD, None, "The password for PLAIN and SCRAM."),
    _setting("sasl.jaas.config", Type.PASSWORD, None, "User and password as the Java client takes them."),
    _setting("sasl.oauthbearer.token", Type.PASSWORD, None, "The token for OAUTHBEARER."),
    _setting("ssl.ca.location", Type.STRING, None, "The authorities to trust, PEM; the machine's own by default."),
    _setting("ssl.certificate.location", Type.STRING, None, "This client's certificate, PEM."),
    _setting("ssl.key.location", Type.STRING, None, "Its key, PEM, where it is not in the same file."),
    _setting("ssl.key.password", Type.PASSWORD, None, "The password of the key."),
    _setting("ssl.truststore.location", Type.STRING, None, "The same as ssl.ca.location."),
    _setting("ssl.truststore.type", Type.STRING, "PEM", "PEM is the only one.", rule=one_of("PEM")),
    _setting("ssl.truststore.certificates", Type.STRING, None, "The authorities themselves, PEM."),
    _setting("ssl.keystore.location", Type.STRING, None, "Certificate and key in one file, PEM."),
    _setting("ssl.keystore.type", Type.STRING, "PEM", "PEM is the only one.", rule=one_of("PEM")),
    _setting(
        "ssl.endpoint.identification.algorithm",
        Type.STRING,
        "https",
        "Whether the broker's certificate must bear its name; empty or `none` turns it off.",
        rule=one_of("https", "none", ""),
    ),
    _setting(
        "enable.ssl.certificate.verification", Type.BOOLEAN, "true", "Whether the broker's certificate is checked."
    ),
    _setting(
        "request.timeout.ms",
        Type.INT,
        "30000",
        "How long a broker may be silent while it owes an answer.",
        rule=at_least(1),
    ),
    _setting("default.api.timeout.ms", Type.INT, "60000", "How long a call goes on trying.", rule=at_least(0)),
    _setting(
        "socket.connection.setup.timeout.ms",
        Type.LONG,
        "10000",
        "How long to connect, and how long a broker may be silent during the handshake.",
        rule=at_least(1),
    ),
    _setting("retry.backoff.ms", Type.LONG, "100", "The pause before a second try.", rule=at_least(0)),
    _setting("retry.backoff.max.ms", Type.LONG, "1000", "What the pause grows to.", rule=at_least(0)),
    _setting("connections.max.idle.ms", Type.LONG, "540000", "How long an unused connection is kept."),
    _setting("metadata.max.age.ms", Type.LONG, "300000", "How long leaders are believed unasked.", rule=at_least(0)),
    _setting("fetch.max.bytes", Type.INT, str(32 * MIB), "About how much a fetch brings at most.", rule=at_least(0)),
    _setting(
        "max.partition.fetch.bytes", Type.INT, str(8 * MIB), "How much of one partition at most.", rule=at_least(0)
    ),
    _setting("check.crcs", Type.BOOLEAN, "true", "Whether each batch is held against its checksum."),
    _setting(
        "unreadable.batches",
        Type.STRING,
        "error",
        "What to do at a batch that cannot be read: stop with an error, or pass over it with a warning.",
        rule=one_of("error", "skip"),
    ),
    _setting(
        "isolation.level",
        Type.STRING,
        "read_uncommitted",
        "Whether records of open and aborted transactions are left out.",
        rule=one_of("read_uncommitted", "read_committed"),
    ),
    _setting("acks", Type.STRING, "all", "Whose word a write waits for.", rule=one_of("all", "-1", "1", "0")),
    _setting("enable.idempotence", Type.BOOLEAN, None, "Whether a repeated write appears once; needs acks=all."),
    _setting(
        "compression.type",
        Type.STRING,
        "none",
        "How batches are packed.",
        rule=one_of("none", "gzip", "snappy", "lz4", "zstd"),
    ),
    _setting("compression.level", Type.INT, None, "How hard to pack; the codec's own default where there is none."),
    _setting("batch.size", Type.INT, "1000000", "Bytes of a record batch before compression.", rule=at_least(1)),
    _setting("max.request.size", Type.INT, str(8 * MIB), "Bytes of a produce request.", rule=at_least(1)),
    _setting("buffer.memory", Type.LONG, str(16 * MIB), "Bytes that wait to be sent or answered.", rule=at_least(1)),
    _setting(
        "max.in.flight.requests.per.connection", Type.INT, "5", "Unanswered produce requests.", rule=between(1, 5)
    ),
    _setting("delivery.timeout.ms", Type.INT, "120000", "How long a batch may take to be written.", rule=at_least(1)),
    _setting("transactional.id", Type.STRING, None, "The name under which transactions are written."),
    _setting("transaction.timeout.ms", Type.INT, "60000", "How long a transaction may be open.", rule=at_least(1)),
)

SETTINGS: Final[Mapping[str, Setting]] = {setting.name: setting for setting in _EVERY}

ALIASES: Final = {
    "metadata.broker.list": "bootstrap.servers",
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.oauthbearer.access.token": "sasl.oauthbearer.token",
    "compression.codec": "compression.type",
    "request.required.acks": "acks",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "check.crc": "check.crcs",
}

WITHOUT_EFFECT: Final = frozenset(
    {
        "client.dns.lookup",
        "enable.metrics.push",
        "fetch.max.wait.ms",
        "fetch.min.bytes",
        "fetch.wait.max.ms",
        "heartbeat.interval.ms",
        "linger.ms",
        "max.block.ms",
        "max.poll.interval.ms",
        "max.poll.records",
        "metadata.max.idle.ms",
        "queue.buffering.max.ms",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "retries",
        "send.buffer.bytes",
        "session.timeout.ms",
        "ssl.enabled.protocols",
        "ssl.protocol",
        "ssl.truststore.password",
    }
)
"""Settings of other clients that tune machinery which this one does not have; taken, so that a file can be shared."""


class ClientSettings:
    """Settings that were checked. `settings["request.timeout.ms"]` is the value in force, of the setting's own type."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.given: dict[str, str] = {}
        """What was set, by the names in `SETTINGS`."""
        try:
            for name, text in given.items():
                self._take(name, text)
            self._values = {name: _value(setting, self.given) for name, setting in SETTINGS.items()}
            self.bootstrap = self._addresses()
            self.connection = self._connection()
        except (ConfigError, ValueError) as error:
            raise ClientError(str(error), "INVALID_CONFIG") from None

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def seconds(self, name: str) -> float:
        """The value of a setting in milliseconds, in seconds."""
        return float(self._values[name]) / 1000

    def _take(self, name: str, text: object) -> None:
        if name in WITHOUT_EFFECT:
            return
        name = ALIASES.get(name, name)
        if name not in SETTINGS:
            raise ConfigError(f"Unknown client setting {shown(name)}{nearest(name, [*SETTINGS, *ALIASES])}")
        if name == "security.protocol":
            text = str(text).upper()
        self.given[name] = str(text).lower() if isinstance(text, bool) else str(text)

    def _addresses(self) -> list[Address]:
        text = self["bootstrap.servers"]
        if not text:
            raise ConfigError("bootstrap.servers is not set: name one or more brokers, such as 127.0.0.1:9092")
        try:
            return parse_bootstrap(text)
        except ValueError as error:
            raise ConfigError(f"Invalid value for configuration bootstrap.servers: {error}") from None

    def _connection(self) -> ConnectionSettings:
        protocol = self["security.protocol"]
        has_sasl = protocol.startswith("SASL_")
        mechanism = self["sasl.mechanism"]
        return ConnectionSettings(
            client_id=self["client.id"],
            connect_timeout=self.seconds("socket.connection.setup.timeout.ms"),
            request_timeout=self.seconds("request.timeout.ms"),
            tls=client_context(self._tls()) if protocol.endswith("SSL") else None,
            mechanism=mechanism if has_sasl else None,
            exchange=credentials(mechanism, *self._user(), self["sasl.oauthbearer.token"]) if has_sasl else None,
        )

    def _tls(self) -> TlsSettings:
        return TlsSettings(
            ca_location=self["ssl.ca.location"] or self["ssl.truststore.location"],
            ca_pem=self["ssl.truststore.certificates"],
            certificate_location=self["ssl.certificate.location"] or self["ssl.keystore.location"],
            key_location=self["ssl.key.location"],
            key_password=self["ssl.key.password"],
            checks_host_name=self["ssl.endpoint.identification.algorithm"] == "https",
            verifies=self["enable.ssl.certificate.verification"],
        )

    def _user(self) -> tuple[str | None, str | None]:
        jaas = self["sasl.jaas.config"]
        if jaas is None:
            return self["sasl.username"], self["sasl.password"]
        username, password = value_in_jaas("username", jaas), value_in_jaas("password", jaas)
        if username is None or password is None:
            raise ConfigError(
                "sasl.jaas.config has no username or no password; it reads "
                '`...LoginModule required username="alice" password="secret";`'
            )
        return username, password


def _value(setting: Setting, given: Mapping[str, str]) -> Any:
    text = given.get(setting.name, setting.default)
    return None if text is None else setting.parse(text)
