"""The TLS of one listener, after its settings and files: both may change while the broker runs.

Every few seconds settings and files are compared with what is in use, whoever changed them: an operator (SIGHUP looks
at once), a tool that renews certificates, AlterConfigs. What has changed is read off the loop, and used for connections
that come from then on. What cannot be used is logged, and shown as a problem of the broker, and changes nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog

from headrace.config import BrokerConfig, ConfigError
from headrace.health import HealthProblem, ProblemCode, problem
from headrace.net.tls import ServerTls, ServerTlsSettings
from headrace.security.certificates import PrincipalMapping

from .handshakes import Handshakes

WARN_DAYS: Final = 14
SASL_SSL: Final = "SASL_SSL"
PROTOCOLS: Final = ("SSL", SASL_SSL)
"""Of listeners that speak TLS."""
_CLIENT_AUTH: Final = "ssl.client.auth"
_MAPPING_RULES: Final = "ssl.principal.mapping.rules"

log = structlog.get_logger(__name__)


class ListenerTls:
    """What a listener's connections need to speak TLS, renewed when it changes."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: BrokerConfig,
        listener: str,
        protocol: str,
        now_ms: Callable[[], int],
        run_in_background: Callable[[Callable[[], None]], Awaitable[None]],
    ) -> None:
        """ConfigError says what is wrong with the settings or the files that they name."""
        self._config = config
        self.listener = listener
        self._asks_for_login = protocol == SASL_SSL
        self._now_ms = now_ms
        self._run_in_background = run_in_background
        self._renewing = asyncio.Lock()
        self._refused: tuple[object, str] | None = None
        """What could not be used, as settings and files were then, and why."""
        self.renewals = 0
        try:
            tls, rules = ServerTls(self._settings()), self._rules()
            mapping = PrincipalMapping(rules)
        except ValueError as error:
            raise ConfigError(f"Listener {listener}: {error}") from None
        self._mapped_by = rules
        self.handshakes = Handshakes(loop, tls, mapping, listener=listener, names_clients=not self._asks_for_login)
        log.info(
            "TLS certificate in use",
            listener=listener,
            subject=tls.certificate.subject,
            expires=tls.certificate.expires.isoformat(),
            client_auth=tls.settings.client_auth,
        )

    @property
    def tls(self) -> ServerTls:
        """The certificate, and what connections are made with."""
        return self.handshakes.tls

    @property
    def expires_at(self) -> float:
        """When the certificate ends to be valid, in seconds since 1970."""
        return self.tls.certificate.expires.timestamp()

    async def watch(self) -> None:
        """Take over what has changed since, if anything has."""
        async with self._renewing:
            settings, rules = self._settings(), self._rules()
            if rules != self._mapped_by or self.tls.is_stale(settings):
                await self._renew(settings, rules)
            elif self._refused is not None:
                self._refused = None

    async def renew(self) -> None:
        """Read it all again, changed or not."""
        async with self._renewing:
            self._refused = None
            await self._renew(self._settings(), self._rules())

    def problems(self) -> Iterator[HealthProblem]:
        """What operators should know of the certificate."""
        subject = f"listener {self.listener}"
        left = self.tls.certificate.expires - datetime.fromtimestamp(self._now_ms() / 1000, UTC)
        words = f"the certificate of {self.tls.certificate.subject}"
        at = self.tls.certificate.expires.isoformat()
        if left <= timedelta():
            yield problem(ProblemCode.CERTIFICATE_EXPIRED, subject, f"{words} has expired at {at}")
        elif left <= timedelta(days=WARN_DAYS):
            yield problem(ProblemCode.CERTIFICATE_EXPIRES, subject, f"{words} expires at {at}, in {left.days} day(s)")
        if self._refused is not None:
            yield problem(ProblemCode.CERTIFICATE_REFUSED, subject, f"{self._refused[1]}; {words} stays in use")

    async def _renew(self, settings: ServerTlsSettings, rules: str) -> None:
        what = (settings, rules, ServerTls.seen(settings))
        if self._refused is not None and self._refused[0] == what:
            return
        before = self.tls.certificate
        try:
            self._config.refuse_open_listeners()  # also not by a change while it runs
            mapping = PrincipalMapping(rules)
            await self._run_in_background(lambda: self.tls.renew(settings, self._now()))
        except (ValueError, ConfigError) as error:
            self._refused = (what, str(error))
            log.error("TLS certificate refused", listener=self.listener, reason=str(error), kept=before.subject)
            return
        self._refused = None
        self.handshakes.mapping, self._mapped_by = mapping, rules
        self.renewals += 1
        now = self.tls.certificate
        log.info(
            "TLS certificate renewed", listener=self.listener, subject=now.subject, expires=now.expires.isoformat()
        )

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._now_ms() / 1000, UTC)

    def _rules(self) -> str:
        return str(self._value(_MAPPING_RULES))

    def _value(self, name: str) -> object:
        return self._config.of_listener(self.listener, name)

    def _text(self, name: str) -> str | None:
        value = self._value(name)
        return str(value) if value else None

    def _list(self, name: str) -> tuple[str, ...]:
        value = self._value(name)
        return value if isinstance(value, tuple) else ()

    def _client_auth(self) -> str:
        if self._asks_for_login:  # as in Kafka: what stands for all listeners is not meant for those with SASL
            return str(self._config.own_of_listener(self.listener, _CLIENT_AUTH) or "none")
        return str(self._value(_CLIENT_AUTH))

    def _settings(self) -> ServerTlsSettings:
        text = self._text
        return ServerTlsSettings(
            keystore_type=text("ssl.keystore.type"),
            keystore_location=text("ssl.keystore.location"),
            keystore_password=text("ssl.keystore.password"),
            certificate_chain=text("ssl.keystore.certificate.chain"),
            key=text("ssl.keystore.key"),
            key_password=text("ssl.key.password"),
            truststore_type=text("ssl.truststore.type"),
            truststore_location=text("ssl.truststore.location"),
            truststore_password=text("ssl.truststore.password"),
            truststore_certificates=text("ssl.truststore.certificates"),
            client_auth=self._client_auth(),
            protocols=self._list("ssl.enabled.protocols"),
            cipher_suites=self._list("ssl.cipher.suites"),
            endpoint_identification=text("ssl.endpoint.identification.algorithm") or "",
        )
