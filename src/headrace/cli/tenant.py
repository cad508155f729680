"""`headrace tenant`: a part of a cluster for somebody: a prefix with its users, ACLs and quotas.

A tenant is nothing that a cluster keeps. It is what the ACLs say: users who may do everything with topics, groups and
transactional ids whose names begin with the prefix. So it can be made, changed and taken apart with `headrace acl`,
`user` and `quota`, too, and exists in any Kafka.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace.client.core.security import EVERY_HOST
from headrace.client.errors import ClientError
from headrace.protocol.acl import (
    AclBinding,
    AclEntry,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from headrace.protocol.scram import ScramMechanism

from . import connecting
from .acl import principal_of
from .client_options import resolve_target
from .console import Failure, bad_input, examples, note, say, say_json, say_table
from .options import DEFAULT_BOOTSTRAP, Bootstrap, ClientProperties, Json
from .quota import in_order, key_of, parsed, short, shown, to_json
from .user import generated, new_password

if TYPE_CHECKING:
    from headrace.client.core.quotas import Entity, EntityQuotas
    from headrace.ops.security import SecurityOperations

app = typer.Typer(
    help="Make, list and delete tenants: a prefix with its users, ACLs and quotas.",
    epilog=examples("headrace tenant create shop --quota produce=10MB --quota storage=100GB", "headrace tenant list"),
    no_args_is_help=True,
)

_TYPES: Final = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
_ENDS: Final = ".-_"
_STORAGE: Final = "storage_bytes"

Name = Annotated[str, typer.Argument(metavar="NAME", help="The tenant.")]
Prefix = Annotated[
    str | None, typer.Option("--prefix", help="What its names begin with; the tenant's name and a dot, if absent.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]


@dataclass(slots=True)
class Tenant:
    """What the ACLs of a cluster say of a prefix."""

    prefix: str
    users: list[str]
    quotas: "list[EntityQuotas]" = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.prefix.rstrip(_ENDS) or self.prefix


@app.command(
    epilog=examples(
        "headrace tenant create shop",
        "headrace tenant create shop --user shop-web --user shop-etl --quota produce=10MB --quota consume=20MB",
        "headrace tenant create shop --prefix shop- --quota storage=100GB --dry-run",
    )
)
def create(
    name: Name,
    prefix: Prefix = None,
    user: Annotated[
        list[str] | None,
        typer.Option("--user", metavar="NAME", help="Its users; the tenant's name if absent; may be repeated."),
    ] = None,
    quota: Annotated[
        list[str] | None,
        typer.Option(
            "--quota",
            metavar="QUOTA=LIMIT",
            help="Of each user: produce, consume, request, mutations; of all topics together: storage.",
        ),
    ] = None,
    password_file: Annotated[
        Path | None,
        typer.Option("--password-file", metavar="FILE", help="The password of a new user; else one is made."),
    ] = None,
    overlap: Annotated[
        bool, typer.Option("--overlap", help="The prefix may reach into that of another tenant.")
    ] = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Make a tenant, or complete one that is there: what exists stays, passwords too.

    Its users may do everything with topics, groups and transactional ids whose names begin with the prefix, and
    nothing else. What is printed at the end is what they need to know; a new password is shown this once.
    """
    prefix = _prefix(name, prefix)
    users = list(dict.fromkeys(user or [name]))
    limits = _limits(quota)
    acls = [acl for each in users for acl in rights(each, prefix)]
    with connecting.security_operations(bootstrap, properties) as operations:
        if not overlap:
            _refuse_overlap(operations, prefix, users)
        existing = {each.name for each in operations.users()}
        new = [each for each in users if each not in existing]
        if not dry_run:
            passwords = {
                each: generated() if password_file is None else new_password(each, password_file) for each in new
            }
            operations.create_acls(acls)
            for entity, quotas in quota_changes(users, prefix, limits):
                operations.alter_quotas(entity, quotas)
            for each, password in passwords.items():
                operations.set_password(each, [ScramMechanism.SHA_512], password)
        else:
            passwords = {}
    _report(
        name,
        prefix,
        users,
        new,
        passwords if password_file is None else {},
        limits,
        dry_run,
        _connection(users[0], bootstrap, properties),
        json,
    )


def _limits(given: list[str] | None) -> dict[str, float | None]:
    limits = parsed(given or ())
    if key_of("connections") in limits:
        raise bad_input("connections are limited by address; `headrace quota set --ip ADDRESS connections=20`")
    return limits


def rights(user: str, prefix: str) -> Iterator[AclBinding]:
    """What a tenant's user may do."""
    for kind in _TYPES:
        yield AclBinding(
            resource=ResourcePattern(type=kind, name=prefix, pattern=PatternType.PREFIXED),
            entry=AclEntry(
                principal=principal_of(user),
                host=EVERY_HOST,
                operation=AclOperation.ALL,
                permission=PermissionType.ALLOW,
            ),
        )


def quota_changes(
    users: Iterable[str], prefix: str, limits: Mapping[str, float | None]
) -> "Iterator[tuple[Entity, Mapping[str, float | None]]]":
    """Whose quotas are to be what."""
    own = {key: value for key, value in limits.items() if key != _STORAGE}
    if own:
        yield from (({"user": user}, own) for user in users)
    if _STORAGE in limits:
        yield {"topic-prefix": prefix}, {_STORAGE: limits[_STORAGE]}


def _prefix(name: str, prefix: str | None) -> str:
    if not name or not name.isprintable() or name != name.strip():
        raise bad_input(f"tenant {name!r}: a name has visible characters only")
    chosen = f"{name}." if prefix is None else prefix
    if not chosen.isascii() or not all(c.isalnum() or c in _ENDS for c in chosen) or not chosen:
        raise bad_input(f"--prefix '{chosen}': names of topics have letters, digits, dots, - and _")
    if chosen[-1] not in _ENDS:
        raise bad_input(
            f"--prefix '{chosen}' is also the beginning of '{chosen}x.'; end it with a dot, - or _, which no other "
            "name has there"
        )
    if chosen.startswith("__"):
        raise bad_input(f"--prefix '{chosen}': names that begin with __ are the brokers' own")
    return chosen


def _refuse_overlap(operations: "SecurityOperations", prefix: str, users: Sequence[str]) -> None:
    mine = {principal_of(user) for user in users}
    for acl in operations.acls(AclFilter(type=ResourceType.TOPIC, permission=PermissionType.ALLOW)):
        if (
            acl.resource.pattern is not PatternType.PREFIXED
            or acl.entry.principal in mine
            or acl.resource.name == prefix
        ):
            continue
        if acl.resource.name.startswith(prefix) or prefix.startswith(acl.resource.name):
            raise Failure(
                f"prefix '{prefix}' and '{acl.resource.name}', where {acl.entry.principal} has rights, reach into each "
                "other; choose another one with --prefix, or say --overlap"
            )


def _connection(user: str, bootstrap: str, properties: list[str] | None) -> dict[str, str]:
    """What a client of the tenant sets, beside its password: the cluster as it was reached here."""
    target = resolve_target(bootstrap, properties)
    protocol = target.settings.get("security.protocol")
    encrypted = protocol is not None and protocol.value.upper().endswith("SSL")
    return {
        "bootstrap.servers": target.bootstrap,
        "security.protocol": "SASL_SSL" if encrypted else "SASL_PLAINTEXT",
        "sasl.mechanism": ScramMechanism.SHA_512.title,
        "sasl.username": user,
    }


def _report(
    name: str,
    prefix: str,
    users: Sequence[str],
    new: Sequence[str],
    passwords: Mapping[str, str],
    limits: Mapping[str, float | None],
    dry_run: bool,
    connection: Mapping[str, str],
    json: bool,
) -> None:
    if json:
        values: list[dict[str, Any]] = [
            {"user": user, "state": "created" if user in new else "kept"}
            | ({"password": passwords[user]} if user in passwords else {})
            for user in users
        ]
        state = "valid" if dry_run else "created"
        say_json(
            {
                "tenant": name,
                "state": state,
                "prefix": prefix,
                "users": values,
                "quotas": dict(limits),
                "connect": dict(connection),
            }
        )
        return
    say(f"tenant    {name}{' (dry run: nothing was changed)' if dry_run else ''}")
    say(f"prefix    {prefix} (of topics, groups and transactional ids)")
    for user in users:
        password = f", password {passwords[user]}" if user in passwords else ""
        say(f"user      {user} ({'new' if user in new else 'was there, its password stays'}){password}")
    for key, value in limits.items():
        say(f"quota     {short(key)} {shown(key, value or 0.0)}{' in all' if key == _STORAGE else ' for each user'}")
    if not dry_run:
        say(f"connect   {' '.join(f'{key}={value}' for key, value in connection.items())}")


@app.command("list", epilog=examples("headrace tenant list", "headrace tenant list --json"))
def list_(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, properties: ClientProperties = None, json: Json = False) -> None:
    """List tenants, as the ACLs tell: prefixes of topics and groups with which users may do everything."""
    with connecting.security_operations(bootstrap, properties) as operations:
        tenants = _tenants(operations)
    if json:
        say_json(
            [
                {
                    "tenant": tenant.name,
                    "prefix": tenant.prefix,
                    "users": tenant.users,
                    "quotas": [to_json(each) for each in tenant.quotas],
                }
                for tenant in tenants
            ]
        )
    elif tenants:
        say_table(
            ("TENANT", "PREFIX", "USERS", "QUOTAS"),
            [(each.name, each.prefix, ", ".join(each.users), _quotas(each.quotas)) for each in tenants],
        )
    else:
        note("no tenants; make one with `headrace tenant create NAME`")


def _quotas(quotas: "Iterable[EntityQuotas]") -> str:
    return ", ".join(
        f"{next(iter(quota.entity.values()))} {short(key)}={shown(key, value)}"
        for quota in quotas
        for key, value in sorted(quota.quotas.items())
    )


def _tenants(operations: "SecurityOperations") -> list[Tenant]:
    rights_of: defaultdict[str, defaultdict[str, set[ResourceType]]] = defaultdict(lambda: defaultdict(set))
    for acl in operations.acls(AclFilter(operation=AclOperation.ALL, permission=PermissionType.ALLOW)):
        if acl.resource.pattern is PatternType.PREFIXED and acl.entry.principal.startswith("User:"):
            rights_of[acl.resource.name][acl.entry.principal.removeprefix("User:")].add(acl.resource.type)
    quotas = in_order(operations.describe_quotas())
    tenants: list[Tenant] = []
    for prefix, users in sorted(rights_of.items()):
        names = sorted(user for user, kinds in users.items() if {ResourceType.TOPIC, ResourceType.GROUP} <= kinds)
        if names:
            entities: list[Entity] = [{"topic-prefix": prefix}, *({"user": name} for name in names)]
            tenants.append(Tenant(prefix, names, [quota for quota in quotas if quota.entity in entities]))
    return tenants


@app.command(
    epilog=examples("headrace tenant delete shop --yes", "headrace tenant delete shop --topics --keep-users --dry-run")
)
def delete(
    name: Name,
    prefix: Prefix = None,
    topics: Annotated[bool, typer.Option("--topics", help="Delete its topics, too, and all records in them.")] = False,
    keep_users: Annotated[bool, typer.Option("--keep-users", help="Leave users and their quotas.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Take a tenant's rights, and delete its users that have no other rights, with their quotas."""
    prefix = _prefix(name, prefix)
    admin = connecting.admin(bootstrap, properties)
    names = [topic.name for topic in admin.list_topics() if topic.name.startswith(prefix)]
    with connecting.security_operations(bootstrap, properties) as operations:
        acls = operations.acls(AclFilter(name=prefix, pattern=PatternType.PREFIXED))
        if not acls:
            raise Failure(f"nobody has rights on prefix '{prefix}'; `headrace tenant list` shows the tenants there are")
        users = [] if keep_users else _only_here(operations, acls, prefix)
        if not dry_run:
            _confirm(name, users, names if topics else [], yes)
            operations.delete_acls([acl.filter() for acl in acls])
            _forget(operations, users, prefix)
    failed: dict[str, ClientError | None] = {}
    if topics and names and not dry_run:
        failed = {topic: error for topic, error in admin.delete_topics(names).items() if error is not None}
    state = "valid" if dry_run else "deleted"
    gone = names if topics else []
    if json:
        say_json({"tenant": name, "prefix": prefix, "state": state, "users": users, "topics": gone})
    else:
        what = "would be" if dry_run else "is"
        say(f"{name}: {what} deleted: {len(acls)} ACL(s), users {', '.join(users) or 'none'}, {len(gone)} topic(s)")
        if names and not topics:
            note(f"headrace: {len(names)} topic(s) that begin with {prefix} are still there; --topics deletes them")
    if failed:
        raise Failure(f"{len(failed)} topic(s) could not be deleted: {next(iter(failed.values()))}")


def _only_here(operations: "SecurityOperations", acls: Iterable[AclBinding], prefix: str) -> list[str]:
    """The users of a prefix that have no rights anywhere else."""
    principals = {
        acl.entry.principal
        for acl in acls
        if acl.entry.principal.startswith("User:") and acl.entry.principal != "User:*"
    }
    return sorted(
        principal.removeprefix("User:")
        for principal in principals
        if all(
            each.resource.name == prefix and each.resource.pattern is PatternType.PREFIXED
            for each in operations.acls(AclFilter(principal=principal))
        )
    )


def _forget(operations: "SecurityOperations", users: Sequence[str], prefix: str) -> None:
    for each in operations.users():
        if each.name in users:
            operations.delete_credentials(each.name, each.iterations)
    wanted: list[Entity] = [{"topic-prefix": prefix}, *({"user": user} for user in users)]
    for quota in operations.describe_quotas():
        if quota.entity in wanted:
            operations.alter_quotas(quota.entity, dict.fromkeys(quota.quotas))


def _confirm(name: str, users: Sequence[str], topics: Sequence[str], yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise bad_input(f"deleting tenant {name} needs --yes, as there is no terminal to ask on")
    more = f" and {len(topics)} topic(s) with all records in them" if topics else ""
    if not typer.confirm(f"Delete tenant '{name}', its users ({', '.join(users) or 'none'}){more}?", err=True):
        raise Failure("nothing was deleted")
