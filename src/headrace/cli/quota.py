"""`headrace quota`: how much users, clients and addresses may ask for."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Final

import typer

from . import connecting
from .console import bad_input, examples, note, say, say_json, say_table
from .options import DEFAULT_BOOTSTRAP, Bootstrap, ClientProperties, Json, pairs
from .units import amount, shown_bytes

if TYPE_CHECKING:
    from headrace.client.core.quotas import Entity, EntityQuotas

app = typer.Typer(
    help="See and change quotas of users, clients, addresses and prefixes of topics.",
    epilog=examples("headrace quota set --user alice produce=10MB consume=20MB", "headrace quota list"),
    no_args_is_help=True,
)

KEYS: Final = {
    "produce": "producer_byte_rate",
    "consume": "consumer_byte_rate",
    "request": "request_percentage",
    "mutations": "controller_mutation_rate",
    "connections": "connection_creation_rate",
    "storage": "storage_bytes",
}
"""What they are called here, and by Kafka; storage is ours."""
_RATES: Final = frozenset({"producer_byte_rate", "consumer_byte_rate"})
_UNITS: Final = {"controller_mutation_rate": "/s", "connection_creation_rate": "/s", "request_percentage": "%"}

User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="A user.")]
DefaultUser = Annotated[bool, typer.Option("--default-user", help="Each user that has no quota of its own.")]
ClientId = Annotated[str | None, typer.Option("--client-id", metavar="ID", help="Clients with this client.id.")]
DefaultClientId = Annotated[
    bool, typer.Option("--default-client-id", help="Each client.id without a quota of its own.")
]
Ip = Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", help="An address; only for connections.")]
DefaultIp = Annotated[bool, typer.Option("--default-ip", help="Each address without a quota of its own.")]
TopicPrefix = Annotated[
    str | None,
    typer.Option("--topic-prefix", metavar="PREFIX", help="All topics whose names begin so; only for storage."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Let the brokers check it, and change nothing.")]


@app.command(
    "list",
    epilog=examples("headrace quota list", "headrace quota list --user alice", "headrace quota list --json"),
)
def list_(
    user: User = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client_id: DefaultClientId = False,
    ip: Ip = None,
    default_ip: DefaultIp = False,
    topic_prefix: TopicPrefix = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """List quotas: all, or those that have to do with a user, a client or an address."""
    from headrace.client.core.quotas import named  # loads Kafka's schemas

    entity = _entity(user, default_user, client_id, default_client_id, ip, default_ip, topic_prefix)
    with connecting.security_operations(bootstrap, properties) as operations:
        quotas = in_order(operations.describe_quotas(named(entity)))
    if json:
        say_json([to_json(quota) for quota in quotas])
    elif quotas:
        show(quotas)
    else:
        note("no quotas; set some with `headrace quota set`")


def to_json(quota: "EntityQuotas") -> dict[str, object]:
    return {"entity": quota.entity, "quotas": dict(sorted(quota.quotas.items()))}


def in_order(quotas: "Iterable[EntityQuotas]") -> "list[EntityQuotas]":
    """By whom they are for; users stand before client ids, as they do in Kafka's tools."""

    def sort_key(quota: "EntityQuotas") -> list[tuple[bool, str, str]]:
        return sorted((kind == "client-id", kind, name or "") for kind, name in quota.entity.items())

    return sorted(quotas, key=sort_key)


def title(entity: "Entity") -> str:
    """Whom a quota is for, for people: `user alice, client-id (default)`."""
    parts = sorted(entity.items(), key=lambda part: part[0] == "client-id")
    return ", ".join(f"{kind} {'(default)' if name is None else name}" for kind, name in parts)


def show(quotas: "Iterable[EntityQuotas]") -> None:
    """Quotas as a table."""
    rows = [
        (title(quota.entity), short(key), shown(key, value))
        for quota in quotas
        for key, value in sorted(quota.quotas.items(), key=lambda limit: [*KEYS, limit[0]].index(short(limit[0])))
    ]
    say_table(("OF", "QUOTA", "LIMIT"), rows)


@app.command(
    "set",
    epilog=examples(
        "headrace quota set --user alice produce=10MB consume=20MB",
        "headrace quota set --default-user request=50% mutations=5",
        "headrace quota set --user alice --client-id etl produce=1MiB",
        "headrace quota set --default-ip connections=20 --dry-run",
        "headrace quota set --topic-prefix shop. storage=100GB",
    ),
)
def set_(
    limits: Annotated[
        list[str],
        typer.Argument(
            metavar="QUOTA=LIMIT...",
            help="produce and consume in bytes a second, request in % of a thread's time, mutations and connections "
            "a second, storage in bytes; also by Kafka's names.",
        ),
    ],
    user: User = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client_id: DefaultClientId = False,
    ip: Ip = None,
    default_ip: DefaultIp = False,
    topic_prefix: TopicPrefix = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Set quotas of a user, a client, an address, or the default of all; others stay as they are."""
    entity = _required(_entity(user, default_user, client_id, default_client_id, ip, default_ip, topic_prefix))
    _alter(entity, parsed(limits), dry_run, bootstrap, properties, json)


@app.command(epilog=examples("headrace quota remove --user alice", "headrace quota remove --user alice produce --json"))
def remove(
    quotas: Annotated[
        list[str] | None, typer.Argument(metavar="[QUOTA]...", help="Only these, by name; all if none is named.")
    ] = None,
    user: User = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client_id: DefaultClientId = False,
    ip: Ip = None,
    default_ip: DefaultIp = False,
    topic_prefix: TopicPrefix = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Remove quotas: what is not limited by another one, as a default, is not limited then."""
    from headrace.client.core.quotas import named  # loads Kafka's schemas

    entity = _required(_entity(user, default_user, client_id, default_client_id, ip, default_ip, topic_prefix))
    keys = [key_of(each) for each in quotas or ()]
    if not keys:
        with connecting.security_operations(bootstrap, properties) as operations:
            keys = [key for each in operations.describe_quotas(named(entity), strict=True) for key in each.quotas]
        if not keys:
            note(f"{title(entity)} has no quotas")
            return
    _alter(entity, dict.fromkeys(keys), dry_run, bootstrap, properties, json)


def _alter(
    entity: "Entity",
    limits: Mapping[str, float | None],
    dry_run: bool,
    bootstrap: str,
    properties: list[str] | None,
    json: bool,
) -> None:
    with connecting.security_operations(bootstrap, properties) as operations:
        operations.alter_quotas(entity, limits, validate_only=dry_run)
    if json:
        state = "valid" if dry_run else "altered"
        say_json({"entity": dict(entity), "state": state, "quotas": dict(limits)})
        return
    for key, value in limits.items():
        what = "not limited" if value is None else shown(key, value)
        say(f"{title(entity)}: {short(key)} {'would be' if dry_run else 'is'} {what}")


def _entity(
    user: str | None,
    default_user: bool,
    client_id: str | None,
    default_client_id: bool,
    ip: str | None,
    default_ip: bool,
    topic_prefix: str | None,
) -> "Entity":
    entity: dict[str, str | None] = {}
    for kind, name, is_default in (
        ("user", user, default_user),
        ("client-id", client_id, default_client_id),
        ("ip", ip, default_ip),
        ("topic-prefix", topic_prefix, False),
    ):
        if name is not None and is_default:
            raise bad_input(f"--{kind} {name} and --default-{kind} are two; give one of them")
        if name is not None and not name:
            raise bad_input(f"--{kind} is empty; for all without a quota of their own there is --default-{kind}")
        if name is not None or is_default:
            entity[kind] = name
    if len(entity) > 1 and set(entity) != {"user", "client-id"}:
        raise bad_input("a quota is for a user, a client, both, an address or a prefix of topics; leave out the others")
    return entity


def _required(entity: "Entity") -> "Entity":
    if not entity:
        raise bad_input("whose quota? Give --user, --client-id, --ip, --topic-prefix, or the default of one of them")
    return entity


def key_of(text: str) -> str:
    """Kafka's name of a quota."""
    if text in KEYS:
        return KEYS[text]
    if text in KEYS.values():
        return text
    raise bad_input(f"'{text}' is no quota; there are {', '.join(KEYS)}")


def parsed(limits: Iterable[str]) -> dict[str, float | None]:
    """`produce=10MB` as what brokers take."""
    quotas: dict[str, float | None] = {}
    for name, text in pairs(limits, "quota").items():
        key = key_of(name)
        if key in _RATES or key == "storage_bytes":
            quotas[key] = float(amount(text, name))
        else:
            quotas[key] = _number(name, text.removesuffix("%").removesuffix("/s"))
    return quotas


def _number(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise bad_input(f"{name}={text} is not a number above 0; `headrace quota remove` lifts a quota")
    return number


def shown(key: str, value: float) -> str:
    """A limit for people."""
    if key in _RATES:
        return f"{value:.0f} ({shown_bytes(value)}/s)"
    if key == "storage_bytes":
        return f"{value:.0f} ({shown_bytes(value)})"
    return f"{value:g}{_UNITS.get(key, '')}"


def short(key: str) -> str:
    """What a quota is called here."""
    return next((name for name, full in KEYS.items() if full == key), key)
