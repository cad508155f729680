"""The settings of TLS, by Kafka's names: those of all listeners that speak it, and of links to them.

Each may stand for one listener, as `listener.name.<listener>.ssl.keystore.location`. What they come to is checked where
a listener is made of them, as files have to be read for that: `net.tls`.
"""

from typing import Final

from .setting import Setting, Type, one_of, some_of

KEYSTORE_LOCATION: Final = "ssl.keystore.location"
CLIENT_AUTH: Final = "ssl.client.auth"
MAPPING_RULES: Final = "ssl.principal.mapping.rules"


def _setting(name: str, kind: Type, default: str | None, doc: str, *, importance: str = "medium") -> Setting:
    return Setting(name=name, type=kind, default=default, doc=doc, importance=importance, dynamic=True)


def _secret(name: str, doc: str) -> Setting:
    return Setting(name=name, type=Type.PASSWORD, default=None, doc=doc, importance="high", reloadable=True)


TLS_SETTINGS: Final = (
    _setting(
        KEYSTORE_LOCATION,
        Type.STRING,
        None,
        "The file with the broker's certificate, its chain and its key: PEM or PKCS12. Read again when it changes.",
        importance="high",
    ),
    Setting(
        name="ssl.keystore.type",
        type=Type.STRING,
        default=None,
        rule=one_of("PEM", "PKCS12", "JKS"),
        doc="PEM or PKCS12; what the file is shows when it is read. JKS files are not read, `keytool -importkeystore` "
        "turns them into PKCS12.",
        dynamic=True,
    ),
    _secret("ssl.keystore.password", "The password of a PKCS12 keystore."),
    _secret(
        "ssl.keystore.certificate.chain",
        "The broker's certificate and its chain as PEM, in the place of ssl.keystore.location.",
    ),
    _secret("ssl.keystore.key", "The key of ssl.keystore.certificate.chain as PEM, encrypted or not."),
    _secret("ssl.key.password", "The password of an encrypted key in PEM."),
    _setting(
        "ssl.truststore.location",
        Type.STRING,
        None,
        "The file with the authorities whose client certificates count: PEM or PKCS12. Read again when it changes.",
        importance="high",
    ),
    Setting(
        name="ssl.truststore.type",
        type=Type.STRING,
        default=None,
        rule=one_of("PEM", "PKCS12", "JKS"),
        doc="As ssl.keystore.type.",
        dynamic=True,
    ),
    _secret("ssl.truststore.password", "The password of a PKCS12 truststore."),
    _secret("ssl.truststore.certificates", "The authorities as PEM, in the place of ssl.truststore.location."),
    Setting(
        name=CLIENT_AUTH,
        type=Type.STRING,
        default="none",
        rule=one_of("none", "requested", "required"),
        doc="Whether clients show a certificate. Who does is known by it, see ssl.principal.mapping.rules. On a "
        "SASL_SSL listener only its own setting counts, listener.name.<listener>.ssl.client.auth, and SASL says who a "
        "client is.",
        dynamic=True,
    ),
    Setting(
        name="ssl.enabled.protocols",
        type=Type.LIST,
        default="TLSv1.2,TLSv1.3",
        rule=some_of("TLSv1.2", "TLSv1.3"),
        doc="The versions of TLS that are spoken.",
        dynamic=True,
    ),
    _setting(
        "ssl.cipher.suites",
        Type.LIST,
        "",
        "The cipher suites of TLS 1.2, by Kafka's names; those with forward secrecy and authenticated encryption where "
        "none are given. TLS 1.3 has all of its own, or none where only others are named.",
        importance="low",
    ),
    _setting(
        MAPPING_RULES,
        Type.STRING,
        "DEFAULT",
        "How the subject of a client's certificate becomes its principal: RULE:pattern/replacement/[LU] and DEFAULT, "
        "with commas between them. The first whose pattern matches the whole subject counts.",
    ),
    _setting(
        "ssl.endpoint.identification.algorithm",
        Type.STRING,
        "https",
        "Whether a link to another broker checks that its certificate is for the name it is reached by; empty: no.",
    ),
)
