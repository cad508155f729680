"""How a broker reaches ZooKeeper and who it is there: TLS, credentials, and the ACLs of what it writes."""

from collections.abc import Mapping
from typing import Final

from .setting import Setting, Type, ValueRule, one_of

CONNECT: Final = "zookeeper.connect"
TLS_ENABLE: Final = "zookeeper.ssl.client.enable"
KEYSTORE: Final = "zookeeper.ssl.keystore.location"
KEYSTORE_PASSWORD: Final = "zookeeper.ssl.keystore.password"
TRUSTSTORE: Final = "zookeeper.ssl.truststore.location"
CHECKS_HOST: Final = "zookeeper.ssl.endpoint.identification.algorithm"
SET_ACL: Final = "zookeeper.set.acl"
AUTH: Final = "headrace.zookeeper.auth"
AUTH_VARIABLE: Final = "HEADRACE_ZOOKEEPER_AUTH"


def _setting(name: str, kind: Type, default: str | None, rule: ValueRule | None, doc: str) -> Setting:
    return Setting(name=name, type=kind, default=default, rule=rule, doc=doc)


ZOOKEEPER_SETTINGS: Final = (
    _setting(
        TLS_ENABLE,
        Type.BOOLEAN,
        "false",
        None,
        f"Whether the link to ZooKeeper is encrypted. {CONNECT} then names ports that speak TLS (secureClientPort).",
    ),
    _setting(
        KEYSTORE,
        Type.STRING,
        None,
        None,
        "The file with this broker's certificate and its key for ZooKeeper, PEM. ZooKeeper may know the broker by it "
        "(ssl.clientAuth, X509AuthenticationProvider).",
    ),
    _setting(KEYSTORE_PASSWORD, Type.PASSWORD, None, None, f"The password of the key in {KEYSTORE}."),
    _setting("zookeeper.ssl.keystore.type", Type.STRING, "PEM", one_of("PEM"), f"What {KEYSTORE} is."),
    _setting(
        TRUSTSTORE,
        Type.STRING,
        None,
        None,
        "The file with the authorities that sign ZooKeeper's certificates, PEM; the system's own where it is not set.",
    ),
    _setting("zookeeper.ssl.truststore.type", Type.STRING, "PEM", one_of("PEM"), f"What {TRUSTSTORE} is."),
    _setting("zookeeper.ssl.truststore.password", Type.PASSWORD, None, None, "PEM has none; it is passed over."),
    _setting(
        CHECKS_HOST,
        Type.STRING,
        "HTTPS",
        one_of("HTTPS", "https", ""),
        f"Whether a server's certificate must be for the name in {CONNECT}; empty: no.",
    ),
    _setting(
        AUTH,
        Type.PASSWORD,
        None,
        ValueRule(holds=lambda value: _is_login(str(value)), words="USER:PASSWORD"),
        "Who the brokers are to ZooKeeper, as USER:PASSWORD (its scheme digest): the same on all of them. Better given "
        f"by {AUTH_VARIABLE}, which no list of processes shows. ZooKeeper is sent it as it is: use TLS.",
    ),
    _setting(
        SET_ACL,
        Type.BOOLEAN,
        "false",
        None,
        "Whether what brokers write to ZooKeeper is theirs alone, to read as to change. It takes "
        f"{AUTH}, or a certificate ({KEYSTORE}). What is there already: `headrace cluster secure-store`.",
    ),
)


def zookeeper_problem(given: Mapping[str, str]) -> str:
    """Why the settings of ZooKeeper do not go together; empty where they do."""
    has_tls, sets_acl = (given.get(name, "").strip().lower() == "true" for name in (TLS_ENABLE, SET_ACL))
    useless = [name for name in (KEYSTORE, TRUSTSTORE) if given.get(name)]
    if useless and not has_tls:
        return f"{' and '.join(useless)} would protect nothing: set {TLS_ENABLE}=true as well"
    if sets_acl and not given.get(AUTH) and not given.get(KEYSTORE):
        return (
            f"{SET_ACL}=true needs somebody whom ZooKeeper knows: set {AUTH}=USER:PASSWORD (or {AUTH_VARIABLE}), or "
            f"give the broker a certificate with {KEYSTORE}"
        )
    connect = given.get(CONNECT, "")
    if sets_acl and connect and not connect.partition("/")[2].strip("/"):
        return (
            f"{SET_ACL}=true needs a path in {CONNECT}, as {connect.rstrip('/')}/headrace: at the top anybody could "
            "delete what is there"
        )
    return ""


def _is_login(text: str) -> bool:
    user, colon, password = text.partition(":")
    return bool(user and colon and password) and "\n" not in text
