"""How ZooKeeper is reached, who we are there, and whose what we write is."""

import ssl
from dataclasses import dataclass
from typing import Any, Final

from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from headrace.config import BrokerConfig, ConfigError
from headrace.config.zookeeper import AUTH, CHECKS_HOST, KEYSTORE, KEYSTORE_PASSWORD, SET_ACL, TLS_ENABLE, TRUSTSTORE
from headrace.net.tls import TlsSettings, client_context

DIGEST: Final = "digest"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ZooKeeperAccess:
    """What a session with ZooKeeper needs besides servers. Not shown: it holds a password."""

    tls: ssl.SSLContext | None = None
    """None for a link that is not encrypted."""
    login: str | None = None
    """USER:PASSWORD; None where ZooKeeper does not know us, or knows us by our certificate."""
    sets_acl: bool = False
    """Whether what is written is ours alone."""

    @property
    def acl(self) -> list[Any]:
        """Of each znode that is made."""
        return list(CREATOR_ALL_ACL if self.sets_acl else OPEN_ACL_UNSAFE)

    @property
    def auth_data(self) -> list[tuple[str, str]]:
        """As kazoo wants it."""
        return [] if self.login is None else [(DIGEST, self.login)]


OPEN: Final = ZooKeeperAccess()


def access_of(config: BrokerConfig) -> ZooKeeperAccess:
    """What the settings say; `ConfigError` names the one that cannot be used."""
    return ZooKeeperAccess(tls=_context(config), login=config[AUTH], sets_acl=bool(config[SET_ACL]))


def _context(config: BrokerConfig) -> ssl.SSLContext | None:
    if not config[TLS_ENABLE]:
        return None
    settings = TlsSettings(
        ca_location=config[TRUSTSTORE],
        certificate_location=config[KEYSTORE],
        key_password=config[KEYSTORE_PASSWORD],
        checks_host_name=bool(config[CHECKS_HOST]),
    )
    try:
        return client_context(settings)
    except ValueError as error:
        names = {"ssl.ca.location": TRUSTSTORE, "ssl.certificate.location": KEYSTORE, "the certificate": KEYSTORE}
        said = str(error)
        for word, name in names.items():
            said = said.replace(word, name, 1) if said.startswith(word) else said
        raise ConfigError(said) from None
