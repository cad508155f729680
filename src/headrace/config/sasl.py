"""Who may log in and how, and for how long: SASL, OAuth tokens, delegation tokens, the first users."""

from typing import Final

from .setting import Setting, Type, Value, ValueRule, at_least, between, some_of

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
ENABLED_MECHANISMS: Final = "sasl.enabled.mechanisms"
JAAS_CONFIG: Final = "sasl.jaas.config"
PLAIN_USERS: Final = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
MAX_REAUTH_MS: Final = "connections.max.reauth.ms"
JWKS_URL: Final = "sasl.oauthbearer.jwks.endpoint.url"
TOKEN_KEY: Final = "delegation.token.secret.key"
ADD_SCRAM: Final = "headrace.add.scram"
_OLD_TOKEN_KEY: Final = "delegation.token.master.key"


def _setting(
    name: str,
    kind: Type,
    default: str | None,
    rule: ValueRule | None,
    doc: str,
    fallbacks: tuple[tuple[str, int], ...] = (),
) -> Setting:
    return Setting(name=name, type=kind, default=default, rule=rule, doc=doc, fallbacks=fallbacks)


def _is_url(value: Value) -> bool:
    return str(value).startswith(("https://", "http://", "file:///"))


SASL_SETTINGS: Final = (
    _setting(
        ENABLED_MECHANISMS,
        Type.LIST,
        "PLAIN",
        some_of(*MECHANISMS),
        "How clients of a listener with SASL can authenticate.",
    ),
    _setting(
        PLAIN_USERS,
        Type.PASSWORD,
        None,
        None,
        'Who may connect by PLAIN to a SASL_PLAINTEXT listener, as `PlainLoginModule required user_alice="secret";` '
        "names them. For another listener its name stands there in small letters.",
    ),
    _setting(
        MAX_REAUTH_MS,
        Type.LONG,
        "0",
        at_least(0),
        "How long a login lasts: until then clients have to authenticate again, or are closed when they go on. 0 for "
        "any time. The expiry of a token is kept in any case.",
    ),
    _setting(
        "sasl.server.max.receive.size",
        Type.INT,
        "524288",
        between(1024, 524_288),
        "The most bytes of one token of a client that authenticates.",
    ),
    _setting(
        JWKS_URL,
        Type.STRING,
        None,
        ValueRule(holds=_is_url, words="an address that begins with https://, http:// or file:///"),
        "Where the public keys are that sign OAuth tokens, as a JWKS.",
    ),
    _setting(
        "sasl.oauthbearer.expected.issuer", Type.STRING, None, None, "Who must have issued an OAuth token (`iss`)."
    ),
    _setting(
        "sasl.oauthbearer.expected.audience",
        Type.LIST,
        None,
        None,
        "For whom an OAuth token must be (`aud`): one of these. Where it is not set, a token that names an audience is "
        "refused.",
    ),
    _setting(
        "sasl.oauthbearer.clock.skew.seconds",
        Type.INT,
        "30",
        between(0, 3600),
        "How far the clock of who issues OAuth tokens may be off.",
    ),
    _setting("sasl.oauthbearer.sub.claim.name", Type.STRING, "sub", None, "The claim that names the user."),
    _setting("sasl.oauthbearer.scope.claim.name", Type.STRING, "scope", None, "The claim that holds the scope."),
    _setting(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        Type.LONG,
        "3600000",
        at_least(1000),
        "How often the keys are fetched. A token with an unknown key has them fetched at once.",
    ),
    _setting(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        Type.LONG,
        "100",
        at_least(1),
        "How long to wait after the keys could not be fetched; twice as long each time.",
    ),
    _setting(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        Type.LONG,
        "10000",
        at_least(1),
        "The longest wait between two attempts to fetch the keys.",
    ),
    _setting(
        TOKEN_KEY,
        Type.PASSWORD,
        None,
        None,
        "What delegation tokens are signed with, the same on all brokers. Without it there are none.",
        fallbacks=((_OLD_TOKEN_KEY, 1),),
    ),
    _setting(_OLD_TOKEN_KEY, Type.PASSWORD, None, None, f"Kafka's older name of {TOKEN_KEY}."),
    _setting(
        "delegation.token.max.lifetime.ms",
        Type.LONG,
        "604800000",
        at_least(1),
        "How long a delegation token can be renewed.",
    ),
    _setting(
        "delegation.token.expiry.time.ms",
        Type.LONG,
        "86400000",
        at_least(1),
        "How long a delegation token is good until it is renewed.",
    ),
    _setting(
        "delegation.token.expiry.check.interval.ms",
        Type.LONG,
        "3600000",
        at_least(1),
        "How often delegation tokens that are over are removed.",
    ),
    _setting(
        ADD_SCRAM,
        Type.PASSWORD,
        None,
        None,
        "The first users, made when the cluster has none: `SCRAM-SHA-512=[name=admin,password=...]`, several with a "
        "semicolon between them. Better given by HEADRACE_ADD_SCRAM, which no list of processes shows.",
    ),
)
