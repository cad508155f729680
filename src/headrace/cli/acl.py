"""`headrace acl`: who may do what, in the words of Kafka's own kafka-acls."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from headrace.client.core.security import EVERY_HOST, acl_json, word
from headrace.protocol.acl import (
    CLUSTER_NAME,
    AclBinding,
    AclEntry,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)

from . import connecting
from .console import Failure, bad, bad_input, examples, note, say, say_json, say_table
from .options import DEFAULT_BOOTSTRAP, Bootstrap, ClientProperties, Json

app = typer.Typer(
    help="List, add and remove ACLs: who may do what.",
    epilog=examples(
        "headrace acl add --allow-principal alice --producer --topic orders",
        "headrace acl list --principal alice",
    ),
    no_args_is_help=True,
)

_OPERATIONS: Final[dict[str, AclOperation]] = {
    each.name.lower().replace("_", ""): each for each in AclOperation if each is not AclOperation.ANY
}

Topic = Annotated[list[str] | None, typer.Option("--topic", help="A topic, or * for all; may be repeated.")]
Group = Annotated[list[str] | None, typer.Option("--group", help="A consumer group; may be repeated.")]
TransactionalId = Annotated[
    list[str] | None, typer.Option("--transactional-id", help="A transactional id; may be repeated.")
]
Cluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
DelegationToken = Annotated[
    list[str] | None, typer.Option("--delegation-token", help="A delegation token, by its id; may be repeated.")
]
UserPrincipal = Annotated[
    list[str] | None,
    typer.Option("--user-principal", help="A user for whom tokens may be made or seen; may be repeated."),
]
Operations = Annotated[
    list[str] | None,
    typer.Option("--operation", help="all, read, write, create, delete, alter, describe, ...; may be repeated."),
]
Producer = Annotated[
    bool, typer.Option("--producer", help="All that a producer needs of --topic, and of --transactional-id.")
]
Consumer = Annotated[bool, typer.Option("--consumer", help="All that a consumer needs of --topic and --group.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
AllowPrincipal = Annotated[
    list[str] | None,
    typer.Option("--allow-principal", metavar="USER", help="Who may: alice, User:alice, User:*; may be repeated."),
]
DenyPrincipal = Annotated[
    list[str] | None,
    typer.Option("--deny-principal", metavar="USER", help="Who may not, whatever else allows it; may be repeated."),
]
AllowHost = Annotated[
    list[str] | None, typer.Option("--allow-host", metavar="ADDRESS", help="From where; everywhere if absent.")
]
DenyHost = Annotated[
    list[str] | None, typer.Option("--deny-host", metavar="ADDRESS", help="From where not; nowhere if absent.")
]


@dataclass(frozen=True, slots=True)
class Resource:
    """What rules are about."""

    type: ResourceType
    name: str


@app.command(
    "list",
    epilog=examples(
        "headrace acl list",
        "headrace acl list --topic orders",
        "headrace acl list --principal alice --json",
    ),
)
def list_(
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: Cluster = False,
    delegation_token: DelegationToken = None,
    user_principal: UserPrincipal = None,
    principal: Annotated[
        list[str] | None, typer.Option("--principal", metavar="USER", help="Only of these; may be repeated.")
    ] = None,
    pattern: Annotated[
        str, typer.Option("--resource-pattern-type", help="match (all that count for a name), literal, prefixed, any.")
    ] = "match",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """List ACLs. Of a topic those are shown that count for it: its own, those of a prefix, and those of `*`."""
    resources = _resources(topic, group, transactional_id, cluster, delegation_token, user_principal)
    chosen = _pattern(pattern, PatternType.ANY, PatternType.MATCH, PatternType.LITERAL, PatternType.PREFIXED)
    principals: list[str | None] = [*map(principal_of, principal or ())] or [None]
    filters = [
        AclFilter(type=resource.type, name=resource.name, pattern=chosen, principal=who)
        for resource in resources
        for who in principals
    ] or [AclFilter(principal=who) for who in principals]
    with connecting.security_operations(bootstrap, properties) as operations:
        acls = sorted({acl for each in filters for acl in operations.acls(each)})
    if json:
        say_json([acl_json(acl) for acl in acls])
    elif acls:
        show(acls)
    else:
        note("no ACLs; make some with `headrace acl add`")


def show(acls: Iterable[AclBinding]) -> None:
    """Rules as a table."""
    say_table(
        ("PRINCIPAL", "HOST", "PERMISSION", "OPERATION", "RESOURCE", "NAME", "PATTERN"),
        [
            (
                acl.entry.principal,
                acl.entry.host,
                bad("deny") if acl.entry.permission is PermissionType.DENY else word(acl.entry.permission),
                word(acl.entry.operation),
                word(acl.resource.type),
                acl.resource.name,
                word(acl.resource.pattern),
            )
            for acl in acls
        ],
    )


@app.command(
    epilog=examples(
        "headrace acl add --allow-principal alice --producer --topic orders",
        "headrace acl add --allow-principal bob --consumer --topic orders --group billing",
        "headrace acl add --allow-principal app --operation all --topic shop. --resource-pattern-type prefixed",
        "headrace acl add --deny-principal eve --operation read --topic orders --deny-host 10.0.0.9",
        "headrace acl add --allow-principal ops --operation alter --operation describe --cluster --dry-run",
    )
)
def add(
    allow_principal: AllowPrincipal = None,
    deny_principal: DenyPrincipal = None,
    allow_host: AllowHost = None,
    deny_host: DenyHost = None,
    operation: Operations = None,
    producer: Producer = False,
    consumer: Consumer = False,
    idempotent: Annotated[
        bool, typer.Option("--idempotent", help="With --producer: for clusters before Kafka 2.8, IdempotentWrite, too.")
    ] = False,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: Cluster = False,
    delegation_token: DelegationToken = None,
    user_principal: UserPrincipal = None,
    pattern: Annotated[
        str,
        typer.Option("--resource-pattern-type", help="literal (names as they are) or prefixed (all that begin so)."),
    ] = "literal",
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Add ACLs: each principal, host and operation with each resource. Those that are there already stay."""
    acls = _acls(
        _granted(
            _resources(topic, group, transactional_id, cluster, delegation_token, user_principal),
            operation,
            producer,
            consumer,
            idempotent,
        ),
        _pattern(pattern, PatternType.LITERAL, PatternType.PREFIXED),
        [
            *_who(allow_principal, allow_host, PermissionType.ALLOW, "--allow-host", "--allow-principal"),
            *_who(deny_principal, deny_host, PermissionType.DENY, "--deny-host", "--deny-principal"),
        ],
    )
    with connecting.security_operations(bootstrap, properties) as operations:
        if not dry_run:
            operations.create_acls(acls)
    _report(acls, "would be added" if dry_run else "added", json)


@app.command(
    epilog=examples(
        "headrace acl remove --topic orders --allow-principal alice --yes",
        "headrace acl remove --topic shop. --resource-pattern-type prefixed --dry-run",
        "headrace acl remove --allow-principal bob --consumer --topic orders --group billing --yes",
    )
)
def remove(
    allow_principal: AllowPrincipal = None,
    deny_principal: DenyPrincipal = None,
    allow_host: AllowHost = None,
    deny_host: DenyHost = None,
    operation: Operations = None,
    producer: Producer = False,
    consumer: Consumer = False,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: Cluster = False,
    delegation_token: DelegationToken = None,
    user_principal: UserPrincipal = None,
    pattern: Annotated[
        str, typer.Option("--resource-pattern-type", help="literal, prefixed, match or any.")
    ] = "literal",
    yes: Yes = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Remove ACLs: all of a resource, or only those of a principal, a host or an operation."""
    resources = _resources(topic, group, transactional_id, cluster, delegation_token, user_principal)
    if not resources and not allow_principal and not deny_principal:
        raise bad_input("that would remove every ACL; name a resource (--topic orders) or a principal")
    chosen = _pattern(pattern, PatternType.ANY, PatternType.MATCH, PatternType.LITERAL, PatternType.PREFIXED)
    filters = list(
        _filters(
            _removed(resources, operation, producer, consumer),
            chosen,
            [
                *_who(
                    allow_principal, allow_host, PermissionType.ALLOW, "--allow-host", "--allow-principal", host=None
                ),
                *_who(deny_principal, deny_host, PermissionType.DENY, "--deny-host", "--deny-principal", host=None),
            ],
        )
    )
    with connecting.security_operations(bootstrap, properties) as operations:
        acls = sorted({acl for each in filters for acl in operations.acls(each)})
        if acls and not dry_run:
            confirm(f"Remove {len(acls)} ACL(s)?", acls, yes)
            acls = operations.delete_acls([acl.filter() for acl in acls])
    _report(acls, "would be removed" if dry_run else "removed", json)


def confirm(question: str, acls: Sequence[AclBinding], yes: bool) -> None:
    """Ask before rules are removed."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise bad_input(f"removing {len(acls)} ACL(s) needs --yes, as there is no terminal to ask on")
    show(acls)
    if not typer.confirm(question, err=True):
        raise Failure("nothing was removed")


def _report(acls: Sequence[AclBinding], state: str, json: bool) -> None:
    if json:
        say_json({"state": state.replace("would be ", "valid, not "), "acls": [acl_json(acl) for acl in acls]})
    elif acls:
        show(acls)
        say(f"{len(acls)} ACL(s) {state}")
    else:
        note(f"no ACL {state}: none is like that")


# What was asked for


def principal_of(text: str) -> str:
    """A principal: `alice` is `User:alice`."""
    if not text or text.startswith(":"):
        raise bad_input(f"principal '{text}' has no kind; write alice or User:alice")
    return text if ":" in text else f"User:{text}"


def _resources(
    topics: Iterable[str] | None,
    groups: Iterable[str] | None,
    transactional_ids: Iterable[str] | None,
    cluster: bool,
    tokens: Iterable[str] | None,
    users: Iterable[str] | None,
) -> list[Resource]:
    return [
        *(Resource(ResourceType.CLUSTER, CLUSTER_NAME) for _ in range(cluster)),
        *(Resource(ResourceType.TOPIC, name) for name in topics or ()),
        *(Resource(ResourceType.GROUP, name) for name in groups or ()),
        *(Resource(ResourceType.TRANSACTIONAL_ID, name) for name in transactional_ids or ()),
        *(Resource(ResourceType.DELEGATION_TOKEN, name) for name in tokens or ()),
        *(Resource(ResourceType.USER, principal_of(name)) for name in users or ()),
    ]


def _pattern(text: str, *allowed: PatternType) -> PatternType:
    names = {word(each): each for each in allowed}
    if text not in names:
        raise bad_input(f"--resource-pattern-type '{text}' is not one of {', '.join(names)}")
    return names[text]


def _operations(given: Iterable[str] | None) -> list[AclOperation]:
    """By Kafka's names in any of the ways in which they are written: DescribeConfigs, describe-configs, ..."""
    operations: list[AclOperation] = []
    for text in given or ():
        operation = _OPERATIONS.get(text.lower().replace("-", "").replace("_", ""))
        if operation is None:
            raise bad_input(f"--operation '{text}' is not one of {', '.join(map(word, _OPERATIONS.values()))}")
        operations.append(operation)
    return operations


_PRODUCER: Final = {
    ResourceType.TOPIC: (AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE),
    ResourceType.TRANSACTIONAL_ID: (AclOperation.WRITE, AclOperation.DESCRIBE),
}
_CONSUMER: Final = {
    ResourceType.TOPIC: (AclOperation.READ, AclOperation.DESCRIBE),
    ResourceType.GROUP: (AclOperation.READ,),
}


def _granted(
    resources: Sequence[Resource], operation: Iterable[str] | None, producer: bool, consumer: bool, idempotent: bool
) -> list[tuple[Resource, AclOperation]]:
    """What is to be allowed or denied, without what follows from it twice."""
    operations = _operations(operation)
    if (producer or consumer) and operations:
        raise bad_input("--operation is in --producer and --consumer already; leave one of them out")
    kinds = {resource.type for resource in resources}
    if producer or consumer:
        if ResourceType.TOPIC not in kinds:
            raise bad_input("--producer and --consumer are for topics; name one with --topic")
        if consumer and ResourceType.GROUP not in kinds:
            raise bad_input("--consumer needs the group that it reads in; name it with --group, or * for any")
    elif not operations:
        raise bad_input("what may they do? Give --operation (all, read, write, ...), --producer or --consumer")
    if not resources:
        raise bad_input("on what? Give --topic, --group, --transactional-id or --cluster")
    granted = [(resource, each) for resource in resources for each in operations]
    for wanted, table in ((producer, _PRODUCER), (consumer, _CONSUMER)):
        if wanted:
            granted += [(resource, each) for resource in resources for each in table.get(resource.type, ())]
    if producer and idempotent:
        granted.append((Resource(ResourceType.CLUSTER, CLUSTER_NAME), AclOperation.IDEMPOTENT_WRITE))
    return list(dict.fromkeys(granted))


def _removed(
    resources: Sequence[Resource], operation: Iterable[str] | None, producer: bool, consumer: bool
) -> list[tuple[Resource | None, AclOperation]]:
    if producer or consumer:
        return [*_granted(resources, operation, producer, consumer, idempotent=False)]
    chosen: list[Resource | None] = [*resources] or [None]
    return [(resource, each) for resource in chosen for each in _operations(operation) or [AclOperation.ANY]]


Who = tuple[str | None, str | None, PermissionType]
"""A principal, a host and whether it may; None for all."""


def _who(
    principals: Iterable[str] | None,
    hosts: Iterable[str] | None,
    permission: PermissionType,
    host_option: str,
    option: str,
    *,
    host: str | None = EVERY_HOST,
) -> Iterator[Who]:
    """Each principal with each host; `host` where none was given."""
    if hosts and not principals:
        raise bad_input(f"{host_option} says from where, and {option} says who; give that, too")
    chosen: list[str | None] = [*(hosts or ())] or [host]
    for principal in principals or ():
        for each in chosen:
            yield principal_of(principal), each, permission


def _acls(
    granted: Iterable[tuple[Resource, AclOperation]], pattern: PatternType, who: Sequence[Who]
) -> list[AclBinding]:
    if not who:
        raise bad_input("who? Give --allow-principal or --deny-principal")
    return sorted(
        AclBinding(
            resource=ResourcePattern(
                type=resource.type,
                name=resource.name,
                pattern=PatternType.LITERAL if resource.type is ResourceType.CLUSTER else pattern,
            ),
            entry=AclEntry(principal=principal, host=host or EVERY_HOST, operation=operation, permission=permission),
        )
        for resource, operation in granted
        for principal, host, permission in who
        if principal is not None
    )


def _filters(
    removed: Iterable[tuple[Resource | None, AclOperation]], pattern: PatternType, who: Sequence[Who]
) -> Iterator[AclFilter]:
    anybody: Sequence[Who] = [(None, None, PermissionType.ANY)]
    for resource, operation in removed:
        for principal, host, permission in who or anybody:
            yield AclFilter(
                type=ResourceType.ANY if resource is None else resource.type,
                name=None if resource is None else resource.name,
                pattern=PatternType.ANY if resource is None else pattern,
                principal=principal,
                host=host,
                operation=operation,
                permission=permission,
            )
