"""The SASL of a broker's listeners, put together out of its settings: who can log in at each, and by what.

Users of PLAIN stand in the settings; users of SCRAM and delegation tokens are the cluster's, so logins by them wait
for `open`. Failed logins are counted by address, whichever listener they come to.
"""

from asyncio import AbstractEventLoop, Event
from collections.abc import Sequence
from typing import Final

import structlog

from headrace.cluster.image import ClusterImage
from headrace.config import BrokerConfig, ConfigError, shown
from headrace.config.per_listener import names_for
from headrace.config.sasl import ENABLED_MECHANISMS, JAAS_CONFIG, JWKS_URL, MAX_REAUTH_MS, TOKEN_KEY
from headrace.net.clock import Clock
from headrace.net.tasks import Work
from headrace.protocol.scram import SCRAM_MECHANISMS
from headrace.security.failed_logins import FailedLogins
from headrace.security.sasl import PLAIN, Mechanism, PlainUsers, plain, users_of
from headrace.security.sasl.credentials import ScramUsers
from headrace.security.sasl.exchange import once_ready
from headrace.security.sasl.oauthbearer import OAUTHBEARER, TokenRules, oauthbearer
from headrace.security.sasl.scram import scram
from headrace.security.sasl.tokens import DelegationTokens

from .authentication import Authenticator, LoginCounts, OnLogin
from .world import Workers

_OAUTH: Final = "sasl.oauthbearer."

log = structlog.get_logger(__name__)


class Sasl:
    """What the listeners with SASL have in common."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        workers: Workers,
        on_login: OnLogin = lambda _connection, _mechanism, _principal, _failure: None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._workers = workers
        self._on_login = on_login
        self._failed_logins = FailedLogins()
        self.is_known: Event | None = None
        """Set once this broker knows the users of its cluster, where that comes later than its first client."""
        self._users: ScramUsers
        self._tokens: DelegationTokens
        self._authenticators: list[Authenticator] = []
        self.follow_keys: list[Work] = []
        """What keeps the keys of OAuth tokens up to date, to be run for as long as the broker serves."""

    def open(self, image: ClusterImage, secret: bytes) -> None:
        """The cluster is known: its users, and a secret of its brokers. Nobody is served before."""
        self._users = ScramUsers(image, secret)
        self._tokens = DelegationTokens(image, self._clock, self._users, self._config[TOKEN_KEY])

    def authenticator(self, loop: AbstractEventLoop, listener: str) -> Authenticator:
        """What the connections of a listener authenticate by; `ConfigError` where nobody could."""
        of_listener = self._config.of_listener
        names: Sequence[str] = of_listener(listener, ENABLED_MECHANISMS)
        made = Authenticator(
            loop,
            {name: self._mechanism(listener, name) for name in names},
            int(self._config["socket.request.max.bytes"]),
            session_ms={name: int(of_listener(listener, MAX_REAUTH_MS, name)) for name in names},
            clock=self._clock,
            failed_logins=self._failed_logins,
            longest_token=int(of_listener(listener, "sasl.server.max.receive.size")),
        )
        made.on_login = self._on_login
        self._authenticators.append(made)
        return made

    @property
    def counts(self) -> LoginCounts:
        """What has become of logins at all listeners."""
        every = [authenticator.counts for authenticator in self._authenticators]
        return LoginCounts(
            succeeded=sum(each.succeeded for each in every),
            failed=sum(each.failed for each in every),
            repeated=sum(each.repeated for each in every),
            expired=sum(each.expired for each in every),
        )

    async def stop(self) -> None:
        for authenticator in self._authenticators:
            await authenticator.stop()

    def _mechanism(self, listener: str, name: str) -> Mechanism:
        if name == PLAIN:
            return plain(self._plain_users(listener))
        if name == OAUTHBEARER:
            return self._oauthbearer(listener)
        mechanism = scram(
            SCRAM_MECHANISMS[name],
            lambda mechanism, user: self._users.find(mechanism, user),  # noqa: PLW0108 - they come later
            lambda mechanism, token_id: self._tokens.find(mechanism, token_id),  # noqa: PLW0108
        )
        return once_ready(mechanism, lambda: self.is_known is None or self.is_known.is_set(), self._until_known)

    async def _until_known(self) -> None:
        if self.is_known is not None:
            await self.is_known.wait()

    def _plain_users(self, listener: str) -> PlainUsers:
        users = users_of(self._config.of_listener(listener, JAAS_CONFIG, PLAIN) or "")
        if not users:
            name = names_for(listener, JAAS_CONFIG, PLAIN)[0]
            raise ConfigError(
                f"Nobody could log in by PLAIN at listener {listener}: set {name}, or leave PLAIN out of "
                f"{ENABLED_MECHANISMS}"
            )
        return PlainUsers(users)

    def _oauthbearer(self, listener: str) -> Mechanism:
        def of(name: str) -> object:
            return self._config.of_listener(listener, f"{_OAUTH}{name}", OAUTHBEARER)

        url = self._config.of_listener(listener, JWKS_URL, OAUTHBEARER)
        if not url:
            raise ConfigError(f"Nobody could log in by OAUTHBEARER at listener {listener}: set {JWKS_URL}")
        if url.startswith("http://"):
            log.warning(
                "keys of OAuth tokens come without TLS: who changes them on the way can be any user", url=shown(url)
            )
        from headrace.security.sasl.keys import KeyBook, fetch_keys  # takes memory that other brokers save

        book = KeyBook(
            url,
            fetch=fetch_keys,
            run=self._workers.background,
            clock=self._clock,
            refresh_ms=int(str(of("jwks.endpoint.refresh.ms"))),
            backoff_ms=(
                int(str(of("jwks.endpoint.retry.backoff.ms"))),
                int(str(of("jwks.endpoint.retry.backoff.max.ms"))),
            ),
        )
        self.follow_keys.append(book.follow)
        audience, issuer = of("expected.audience"), of("expected.issuer")
        rules = TokenRules(
            issuer=None if not issuer else str(issuer),
            audiences=audience if isinstance(audience, tuple) else (),
            skew_seconds=int(str(of("clock.skew.seconds"))),
            subject_claim=str(of("sub.claim.name")),
            scope_claim=str(of("scope.claim.name")),
        )
        return oauthbearer(book, rules, self._clock)
