"""Settings of clients as files have them: those of Kafka's own tools (`--command-config`), of kcat, and ours.

All of them become settings of librdkafka. What Java's client writes in another way (`sasl.jaas.config`, PEM in
`ssl.truststore.location`) is translated; what only tunes Java's machinery is left out; a name that neither client has
is refused, with the file and the line.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from .errors import ClientError

BOOTSTRAP: Final = "bootstrap.servers"
REGISTRY_URL: Final = "schema.registry.url"
_REGISTRY_PREFIX: Final = "schema.registry."
_REGISTRY: Final = frozenset({"basic.auth.user.info", "basic.auth.credentials.source", "bearer.auth.token"})
"""Settings of registries that clients also take without the prefix."""
_ALIASES: Final = {
    "bootstrap": BOOTSTRAP,
    "metadata.broker.list": BOOTSTRAP,
    "registry": REGISTRY_URL,
    "sasl.mechanisms": "sasl.mechanism",
}
_SECRET: Final = re.compile(r"password|passphrase|secret|jaas|user\.info|auth\.token|oauthbearer\.token$|key\.pem")

_LIBRDKAFKA_NAMES: Final = """
acks allow.auto.create.topics api.version.fallback.ms api.version.request api.version.request.timeout.ms
auto.commit.enable auto.commit.interval.ms auto.offset.reset batch.num.messages batch.size broker.address.family
broker.address.ttl broker.version.fallback builtin.features check.crcs client.dns.lookup client.id client.rack
compression.codec compression.level compression.type connections.max.idle.ms consume.callback.max.messages
coordinator.query.interval.ms debug delivery.report.only.error delivery.timeout.ms enable.auto.commit
enable.auto.offset.store enable.gapless.guarantee enable.idempotence enable.metrics.push enable.partition.eof
enable.random.seed enable.sasl.oauthbearer.unsecure.jwt enable.ssl.certificate.verification fetch.error.backoff.ms
fetch.max.bytes fetch.message.max.bytes fetch.min.bytes fetch.queue.backoff.ms fetch.wait.max.ms group.id
group.instance.id group.protocol group.protocol.type group.remote.assignor heartbeat.interval.ms https.ca.location
https.ca.pem isolation.level linger.ms log.connection.close log.queue log.thread.name log_level max.in.flight
max.in.flight.requests.per.connection max.partition.fetch.bytes max.poll.interval.ms message.copy.max.bytes
message.max.bytes message.send.max.retries message.timeout.ms metadata.max.age.ms
metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy offset.store.method partition.assignment.strategy
partitioner plugin.library.paths queue.buffering.backpressure.threshold queue.buffering.max.kbytes
queue.buffering.max.messages queue.buffering.max.ms queued.max.messages.kbytes queued.min.messages queuing.strategy
receive.message.max.bytes reconnect.backoff.jitter.ms reconnect.backoff.max.ms reconnect.backoff.ms
request.required.acks request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms sasl.kerberos.keytab
sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.principal sasl.kerberos.service.name
sasl.mechanism sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.jwt.template.file
sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
sasl.oauthbearer.assertion.private.key.pem sasl.oauthbearer.client.id sasl.oauthbearer.client.secret
sasl.oauthbearer.config sasl.oauthbearer.extensions sasl.oauthbearer.grant.type
sasl.oauthbearer.metadata.authentication.type sasl.oauthbearer.method sasl.oauthbearer.scope
sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url sasl.password sasl.username security.protocol
session.timeout.ms socket.blocking.max.ms socket.connection.setup.timeout.ms socket.keepalive.enable socket.max.fails
socket.nagle.disable socket.receive.buffer.bytes socket.send.buffer.bytes socket.timeout.ms ssl.ca.certificate.stores
ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem ssl.cipher.suites ssl.crl.location
ssl.curves.list ssl.endpoint.identification.algorithm ssl.engine.id ssl.engine.location ssl.key.location
ssl.key.password ssl.key.pem ssl.keystore.location ssl.keystore.password ssl.providers ssl.sigalgs.list
statistics.interval.ms sticky.partitioning.linger.ms topic.blacklist topic.metadata.propagation.max.ms
topic.metadata.refresh.fast.cnt topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms
topic.metadata.refresh.sparse transaction.timeout.ms transactional.id
"""
_LIBRDKAFKA: Final = frozenset(_LIBRDKAFKA_NAMES.split())
_JAVA_ONLY_NAMES: Final = """
auto.include.jmx.reporter buffer.memory confluent.monitoring.interceptor.bootstrap.servers default.api.timeout.ms
exclude.internal.topics fetch.max.wait.ms interceptor.classes key.deserializer key.serializer max.block.ms
max.poll.records max.request.size metadata.max.idle.ms metric.reporters metrics.num.samples metrics.recording.level
metrics.sample.window.ms partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms
partitioner.class partitioner.ignore.keys receive.buffer.bytes sasl.client.callback.handler.class
sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor sasl.login.callback.handler.class
sasl.login.class sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms security.providers send.buffer.bytes
socket.connection.setup.timeout.max.ms ssl.enabled.protocols ssl.engine.factory.class ssl.keymanager.algorithm
ssl.protocol ssl.provider ssl.secure.random.implementation ssl.trustmanager.algorithm ssl.truststore.password
transaction.two.phase.commit.enable value.deserializer value.serializer
"""
_JAVA_ONLY: Final = frozenset(_JAVA_ONLY_NAMES.split())
"""Settings of Java's client that tune what librdkafka does not have: taken, so that a file can be shared."""
_TRANSLATED: Final = frozenset(
    {
        "sasl.jaas.config",
        "ssl.truststore.location",
        "ssl.truststore.type",
        "ssl.truststore.certificates",
        "ssl.keystore.type",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
    }
)
_OURS: Final = frozenset({"sasl.oauthbearer.token"})

_JAAS_VALUE: Final = r'\b{}\s*=\s*(?:"((?:[^"\\]|\\.)*)"|\'((?:[^\'\\]|\\.)*)\'|([^\s;"\']+))'
_ESCAPED: Final = re.compile(r"\\(.)")


class Located(NamedTuple):
    """The value of a setting, and where it was given: a file and a line, an option, a variable."""

    value: str
    origin: str


Settings = Mapping[str, Located]


class BadProperty(ClientError):
    """A setting that no client has, or that has no such value; the message says where it was given."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__(f"{where}: {message}", "INVALID_CONFIG")


def is_secret(name: str) -> bool:
    """Whether the value of a setting is not to be shown."""
    return _SECRET.search(name) is not None


def masked(name: str, value: str) -> str:
    """The value as it may be shown."""
    return "********" if value and is_secret(name) else value


def parse_client_file(text: str, path: str) -> dict[str, Located]:
    """The settings in a `.properties` file, in their own names; BadProperty names the line of what is none."""
    from headrace.config.properties import parse_property_lines

    settings: dict[str, Located] = {}
    for number, name, value in parse_property_lines(text):
        origin = f"{path} line {number}"
        if not name:
            raise BadProperty(origin, "there is no name before the value; each line reads name=value")
        settings[checked_name(name, origin)] = Located(value, origin)
    return settings


def checked_name(name: str, origin: str) -> str:
    """The name of a setting of clients, by which it is known here."""
    name = _ALIASES.get(name, name)
    if name == BOOTSTRAP or name in _REGISTRY or name.startswith(_REGISTRY_PREFIX):
        return name
    if name not in _LIBRDKAFKA | _JAVA_ONLY | _TRANSLATED | _OURS:
        from headrace.config.names import nearest, shown

        known = [*_LIBRDKAFKA, *_TRANSLATED, BOOTSTRAP, REGISTRY_URL]
        raise BadProperty(origin, f"no client has the setting {shown(name)}{nearest(name, known)}")
    return name


def broker_settings(settings: Settings) -> dict[str, Located]:
    """What is said of connections to brokers, in librdkafka's way, without the brokers' addresses."""
    settings_of_broker = {
        name: located
        for name, located in settings.items()
        if name not in _TRANSLATED | _REGISTRY | {BOOTSTRAP} and not name.startswith(_REGISTRY_PREFIX)
    }
    _translate_jaas(settings, settings_of_broker)
    _translate_truststore(settings, settings_of_broker)
    _translate_keystore(settings, settings_of_broker)
    if "ssl.endpoint.identification.algorithm" in settings_of_broker:
        algorithm = settings_of_broker["ssl.endpoint.identification.algorithm"]
        settings_of_broker["ssl.endpoint.identification.algorithm"] = algorithm._replace(
            value=algorithm.value or "none"
        )
    return settings_of_broker


def for_librdkafka(settings: Settings) -> dict[str, str]:
    """As librdkafka takes them."""
    found = broker_settings(settings)
    return {name: located.value for name, located in found.items() if name not in _JAVA_ONLY | _OURS}


def for_columnar(settings: Settings) -> dict[str, str]:
    """As the columnar client takes them; what only librdkafka has is left out, and what nobody has is not."""
    from .columnar.settings import ALIASES, SETTINGS

    properties: dict[str, str] = {}
    for name, located in broker_settings(settings).items():
        if name == "ssl.ca.pem":
            properties["ssl.truststore.certificates"] = located.value
        elif name in ("ssl.certificate.pem", "ssl.key.pem", "ssl.keystore.password"):
            raise BadProperty(located.origin, f"{name} is not read by this command; it takes {_PEM_FILES}")
        elif name in SETTINGS or name in ALIASES or name not in _LIBRDKAFKA | _JAVA_ONLY:
            properties[name] = located.value
    return properties


_PEM_FILES: Final = "PEM files in ssl.certificate.location and ssl.key.location"


def _translate_jaas(settings: Settings, translated: dict[str, Located]) -> None:
    jaas = settings.get("sasl.jaas.config")
    if jaas is None:
        return
    if "PlainLoginModule" not in jaas.value and "ScramLoginModule" not in jaas.value:
        raise BadProperty(jaas.origin, "sasl.jaas.config is read for PlainLoginModule and ScramLoginModule only")
    for name in ("username", "password"):
        value = value_in_jaas(name, jaas.value)
        if value is None:
            raise BadProperty(
                jaas.origin,
                f"sasl.jaas.config has no {name}; it reads "
                '`...PlainLoginModule required username="alice" password="secret";`',
            )
        translated.setdefault(f"sasl.{name}", Located(value, jaas.origin))


def value_in_jaas(name: str, jaas: str) -> str | None:
    """What `sasl.jaas.config` says of a name, such as username."""
    match = re.search(_JAAS_VALUE.format(name), jaas)
    if match is None:
        return None
    return _ESCAPED.sub(r"\1", next(group for group in match.groups() if group is not None))


def _translate_truststore(settings: Settings, translated: dict[str, Located]) -> None:
    if pem := settings.get("ssl.truststore.certificates"):
        translated["ssl.ca.pem"] = pem
    store = settings.get("ssl.truststore.location")
    if store is None:
        return
    _require_pem(settings, "ssl.truststore", store)
    translated.setdefault("ssl.ca.location", store)


def _translate_keystore(settings: Settings, translated: dict[str, Located]) -> None:
    kind = settings.get("ssl.keystore.type")
    if kind is not None and kind.value.upper() == "PEM" and (store := translated.pop("ssl.keystore.location", None)):
        translated.setdefault("ssl.certificate.location", store)
        translated.setdefault("ssl.key.location", store)
    elif store := settings.get("ssl.keystore.location"):
        _require_pem(settings, "ssl.keystore", store, also=(".p12", ".pfx"))
    for java, ours in (("ssl.keystore.certificate.chain", "ssl.certificate.pem"), ("ssl.keystore.key", "ssl.key.pem")):
        if java in settings:
            translated[ours] = settings[java]


def _require_pem(settings: Settings, prefix: str, store: Located, also: tuple[str, ...] = ()) -> None:
    kind = settings.get(f"{prefix}.type")
    is_jks = kind.value.upper() == "JKS" if kind is not None else store.value.lower().endswith((".jks", ".ks"))
    is_p12 = kind.value.upper() == "PKCS12" if kind is not None else store.value.lower().endswith((".p12", ".pfx"))
    if is_jks or (is_p12 and not also):
        raise BadProperty(
            store.origin,
            f"{store.value} is a key store of Java's; export it as PEM (keytool -exportcert -rfc, or openssl pkcs12)"
            f" and name it with {'ssl.ca.location' if 'trust' in prefix else 'ssl.certificate.location'}",
        )
