"""What the authorizer decides, against a model that looks at every ACL."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.cluster.entries import EntryKind
from headrace.cluster.image import ClusterImage
from headrace.config import BrokerConfig, ConfigError
from headrace.protocol.acl import (
    CLUSTER_NAME,
    AclBinding,
    AclEntry,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from headrace.security import authorizer as module
from headrace.security.acl import entry_key, entry_name
from headrace.security.authorizer import Authorizer, authorizer_of

HERE = "10.0.0.1"
Op = AclOperation
TOPIC = ResourceType.TOPIC


def acl(
    name: str = "orders",
    operation: AclOperation = Op.READ,
    *,
    who: str = "User:alice",
    host: str = "*",
    prefixed: bool = False,
    denied: bool = False,
    kind: ResourceType = TOPIC,
) -> AclBinding:
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    permission = PermissionType.DENY if denied else PermissionType.ALLOW
    return AclBinding(
        resource=ResourcePattern(type=kind, pattern=pattern, name=name),
        entry=AclEntry(principal=who, host=host, operation=operation, permission=permission),
    )


def new_image() -> ClusterImage:
    return ClusterImage(cluster_id="c", controller_id=1)


def put(image: ClusterImage, bindings: Iterable[AclBinding]) -> None:
    """These and no others, as the feed brings them."""
    wanted: dict[str, dict[str, str]] = {}
    for binding in bindings:
        wanted.setdefault(entry_name(binding.resource), {})[entry_key(binding.entry)] = ""
    for name in [name for name in image.entries[EntryKind.ACL] if name not in wanted]:
        image.put_entry(EntryKind.ACL, name, {})
    for name, values in wanted.items():
        image.put_entry(EntryKind.ACL, name, values)


def authorizer(*bindings: AclBinding, allows_without_acls: bool = False) -> Authorizer:
    image = new_image()
    put(image, bindings)
    return Authorizer(image, super_users=frozenset({"User:root"}), allows_without_acls=allows_without_acls)


def may(
    found: Authorizer,
    operation: AclOperation = Op.READ,
    name: str = "orders",
    who: str = "User:alice",
    host: str = HERE,
) -> bool:
    return found.allows(who, host, operation, TOPIC, name)


def test_nobody_but_super_users_may_do_what_no_acl_is_about() -> None:
    found = authorizer()
    assert not may(found)
    assert may(found, who="User:root")
    assert may(authorizer(allows_without_acls=True))


def test_an_acl_about_a_resource_shuts_out_others_although_everyone_is_allowed_without() -> None:
    found = authorizer(acl(), allows_without_acls=True)
    assert may(found)
    assert not may(found, who="User:bob")
    assert may(found, name="payments", who="User:bob")
    assert not may(authorizer(acl(name="*"), allows_without_acls=True), name="payments", who="User:bob")


def test_a_denial_wins_over_whatever_allows_wherever_it_stands() -> None:
    allowed = [acl(), acl("*", Op.ALL), acl("ord", prefixed=True), acl(who="User:*")]
    for denial in (
        acl(denied=True),
        acl("*", denied=True),
        acl("o", prefixed=True, denied=True),
        acl(who="User:*", denied=True),
        acl(operation=Op.ALL, denied=True),
        acl(host=HERE, denied=True),
    ):
        assert may(authorizer(*allowed))
        assert not may(authorizer(*allowed, denial))
        assert may(authorizer(*allowed, denial), who="User:root")


def test_to_be_denied_to_read_does_not_keep_from_describing() -> None:
    found = authorizer(acl(operation=Op.WRITE), acl(denied=True))
    assert may(found, Op.DESCRIBE)
    assert not may(found, Op.READ)


@pytest.mark.parametrize(
    ("given_host", "asked", "is_allowed"),
    [
        ("*", HERE, True),
        (HERE, HERE, True),
        (HERE, "10.0.0.2", False),
        (HERE, f"::ffff:{HERE}", True),
        ("::1", "0:0:0:0:0:0:0:1", True),
        ("0:0:0:0:0:0:0:1", "::1", True),
        ("2001:DB8::1", "2001:db8:0::1", True),
        ("localhost", "127.0.0.1", False),
    ],
)
def test_an_acl_counts_at_its_address_however_that_is_written(given_host: str, asked: str, is_allowed: bool) -> None:
    assert may(authorizer(acl(host=given_host)), host=asked) is is_allowed


@pytest.mark.parametrize("waiting", ["payments.headrace-delayed", "payments.headrace-schedules"])
@pytest.mark.parametrize("operation", [Op.READ, Op.WRITE, Op.DELETE])
def test_topics_in_which_messages_wait_are_no_way_around_a_denial(waiting: str, operation: AclOperation) -> None:
    everything = acl("*", operation)
    decides = authorizer(everything, acl("payments", operation, denied=True))
    assert not decides.allows("User:alice", HERE, operation, TOPIC, waiting)
    assert decides.allows("User:alice", HERE, operation, TOPIC, waiting.replace("payments", "orders"))
    only_waiting = authorizer(acl(waiting, operation))
    assert not only_waiting.allows("User:alice", HERE, operation, TOPIC, waiting)
    assert authorizer(acl("pay", operation, prefixed=True)).allows("User:alice", HERE, operation, TOPIC, waiting)


def test_kinds_of_resources_have_nothing_to_do_with_each_other() -> None:
    found = authorizer(acl(kind=ResourceType.GROUP))
    assert not may(found)
    assert found.allows("User:alice", HERE, Op.READ, ResourceType.GROUP, "orders")


def test_what_may_be_done_is_told_in_bits() -> None:
    found = authorizer(acl(operation=Op.WRITE), acl(operation=Op.ALTER_CONFIGS))
    expected = {Op.WRITE, Op.DESCRIBE, Op.ALTER_CONFIGS, Op.DESCRIBE_CONFIGS}
    assert found.operations("User:alice", HERE, TOPIC, "orders") == sum(1 << each for each in expected)
    everything = found.operations("User:root", HERE, ResourceType.CLUSTER, CLUSTER_NAME)
    assert everything == 0b1_1111_1010_0000


# Rights that come and go


def test_a_right_counts_as_soon_as_it_is_given_and_no_longer_than_that() -> None:
    image = new_image()
    found = Authorizer(image)
    for bindings, allowed in (([], False), ([acl()], True), ([acl(), acl(denied=True)], False), ([], False)):
        put(image, bindings)
        assert may(found) is allowed
    put(image, [acl("o", prefixed=True)])
    assert may(found)
    put(image, [acl("x", prefixed=True)])
    assert not may(found)


def test_nobody_but_super_users_is_let_in_before_the_cluster_is_known() -> None:
    image = new_image()
    image.is_whole = False
    found = Authorizer(image, super_users=frozenset({"User:root"}), allows_without_acls=True)
    put(image, [acl()])
    assert not may(found)
    assert not found.allows_any("User:alice", HERE, Op.READ, TOPIC)
    assert may(found, who="User:root")
    image.is_whole = True
    assert may(found)


def test_while_a_snapshot_is_taken_up_what_was_known_counts_and_never_a_mixture() -> None:
    image = new_image()
    put(image, [acl()])
    found = Authorizer(image)
    assert may(found)
    image.is_whole = False
    image.put_entry(EntryKind.ACL, entry_name(acl("*").resource), {entry_key(acl(who="User:bob").entry): ""})
    assert may(found)
    assert not may(found, who="User:bob")
    put(image, [acl("*", who="User:bob"), acl(who="User:bob", denied=True)])
    assert not may(found, who="User:bob")
    assert may(found)
    image.is_whole = True
    assert not may(found)
    assert not may(found, who="User:bob")
    assert may(found, name="payments", who="User:bob")


def test_a_snapshot_that_changes_nothing_keeps_what_was_decided() -> None:
    image = new_image()
    put(image, [acl()])
    found = Authorizer(image)
    assert may(found)
    decisions = found.decisions(Op.READ, TOPIC)
    image.is_whole = False
    put(image, [acl()])
    assert decisions.kept == 1


def test_denials_are_reported_and_what_nobody_asked_for_is_not() -> None:
    reported: list[tuple[str, str]] = []
    image = new_image()
    found = Authorizer(
        image, denied=lambda who, _host, operation, _kind, name: reported.append((who, f"{operation.name} {name}"))
    )
    for _ in range(2):
        assert not may(found)
    assert not found.would_allow("User:alice", HERE, Op.READ, TOPIC, "payments")
    assert found.operations("User:alice", HERE, TOPIC, "payments") == 0
    assert reported == [("User:alice", "READ orders")] * 2


def test_names_that_clients_make_up_take_no_memory() -> None:
    found = authorizer()
    decisions = found.decisions(Op.READ, TOPIC)
    assert not may(found, name="x" * (module.LONGEST_KEPT + 1))
    for number in range(module.MOST_KEPT + 10):
        assert not may(found, name=str(number))
    assert decisions.kept <= module.MOST_KEPT


# Any resource of a kind: who may write to some topic may write idempotently


@pytest.mark.parametrize(
    ("bindings", "allowed"),
    [
        ([], False),
        ([acl(operation=Op.WRITE)], True),
        ([acl(operation=Op.ALL)], True),
        ([acl(operation=Op.READ)], False),
        ([acl(operation=Op.WRITE), acl(operation=Op.WRITE, denied=True)], False),
        ([acl(operation=Op.WRITE), acl("or", Op.WRITE, prefixed=True, denied=True)], False),
        ([acl(operation=Op.WRITE), acl("pay", Op.WRITE, prefixed=True, denied=True)], True),
        ([acl("ord", Op.WRITE, prefixed=True), acl("o", Op.WRITE, prefixed=True, denied=True)], False),
        ([acl("ord", Op.WRITE, prefixed=True), acl("orders", Op.WRITE, denied=True)], True),
        ([acl("*", Op.WRITE), acl("o", Op.WRITE, prefixed=True, denied=True)], True),
        ([acl("*", Op.WRITE), acl("*", Op.ALL, denied=True)], False),
        ([acl(operation=Op.WRITE, who="User:*")], True),
        ([acl(operation=Op.WRITE, who="User:bob")], False),
        ([acl(operation=Op.WRITE, host="10.9.9.9")], False),
    ],
)
def test_whether_any_resource_is_allowed_is_reckoned_as_by_kafka(bindings: list[AclBinding], allowed: bool) -> None:
    assert authorizer(*bindings).allows_any("User:alice", HERE, Op.WRITE, TOPIC) is allowed


def test_a_super_user_may_with_any_and_everyone_where_no_acl_is_needed() -> None:
    assert authorizer(acl("*", Op.ALL, denied=True)).allows_any("User:root", HERE, Op.WRITE, TOPIC)
    assert authorizer(allows_without_acls=True).allows_any("User:alice", HERE, Op.WRITE, TOPIC)


# Against a model

NAMES = st.sampled_from(["", "a", "ab", "abc", "b", "*", "*a", "ba"])
PRINCIPALS = st.sampled_from(["User:a", "User:b", "User:*"])
HOSTS = st.sampled_from(["*", HERE, "10.0.0.2"])
SOME = st.sampled_from([Op.ALL, Op.READ, Op.WRITE, Op.DESCRIBE, Op.ALTER_CONFIGS, Op.DESCRIBE_CONFIGS, Op.DELETE])
BINDINGS = st.lists(
    st.builds(
        acl,
        NAMES.filter(bool),
        SOME,
        who=PRINCIPALS,
        host=HOSTS,
        prefixed=st.booleans(),
        denied=st.booleans(),
        kind=st.sampled_from([TOPIC, ResourceType.GROUP]),
    ),
    max_size=12,
)
ASKED = st.tuples(
    st.sampled_from(["User:a", "User:b", "User:root"]),
    st.sampled_from([HERE, "10.0.0.2", "10.0.0.3"]),
    SOME.filter(lambda operation: operation is not Op.ALL),
    NAMES,
)


def model(
    bindings: list[AclBinding], who: str, host: str, operation: AclOperation, name: str, *, without: bool
) -> bool:
    """Every ACL looked at, in the words of Kafka's documentation."""
    if who == "User:root":
        return True
    about = [each for each in bindings if each.resource.type is TOPIC and each.resource.covers(name)]
    counting = [
        each.entry
        for each in about
        if each.entry.principal in (who, "User:*") and each.entry.host in (host, "*") and each.entry.decides(operation)
    ]
    if any(entry.permission is PermissionType.DENY for entry in counting):
        return False
    return bool(counting) or (without and not about)


@given(st.lists(BINDINGS, min_size=1, max_size=3), st.lists(ASKED, min_size=1, max_size=8), st.booleans())
@settings(deadline=None)
def test_it_decides_what_a_look_at_every_acl_says(
    stages: list[list[AclBinding]], asked: list[tuple[str, str, AclOperation, str]], without: bool
) -> None:
    image = new_image()
    found = Authorizer(image, super_users=frozenset({"User:root"}), allows_without_acls=without)
    for bindings in stages:
        put(image, bindings)
        for who, host, operation, name in asked * 2:
            expected = model(bindings, who, host, operation, name, without=without)
            assert found.allows(who, host, operation, TOPIC, name) is expected


def test_ten_thousand_acls_are_not_all_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    bindings = [acl(f"topic-{n}", who=f"User:{n}") for n in range(6_000)]
    bindings += [acl(f"prefix-{n}-", prefixed=True, who=f"User:{n}") for n in range(3_000)]
    bindings += [acl("*", who=f"User:{n}") for n in range(1_000)]
    found = authorizer(*bindings)
    assert may(found, name="topic-17", who="User:17")
    looked_at: list[AclEntry] = []
    decides = AclEntry.decides

    def counted(entry: AclEntry, operation: AclOperation) -> bool:
        looked_at.append(entry)
        return decides(entry, operation)

    monkeypatch.setattr(AclEntry, "decides", counted)
    assert may(found, name="prefix-2999-x", who="User:2999")
    assert may(found, name="topic-5999", who="User:5999")
    assert not may(found, name="topic-5999", who="User:5998")
    assert may(found, name="anything", who="User:999")
    assert len(looked_at) < 20
    looked_at.clear()
    assert may(found, name="prefix-2999-x", who="User:2999")
    assert not looked_at


# Settings


def config(**given: str) -> BrokerConfig:
    return BrokerConfig.parse({name.replace("_", "."): value for name, value in given.items()})


def test_there_is_an_authorizer_where_the_settings_name_one() -> None:
    assert authorizer_of(config(), new_image()) is None
    for name in ("headrace", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"):
        found = authorizer_of(config(authorizer_class_name=name, super_users="User:root; User:CN=a,O=b;"), new_image())
        assert found is not None
        assert may(found, who="User:root")
        assert may(found, who="User:CN=a,O=b")
        assert not may(found)


@pytest.mark.parametrize("given_users", ["root", "User:a;root", "User:"])
def test_super_users_that_are_no_principals_are_refused(given_users: str) -> None:
    with pytest.raises(ConfigError, match="User:alice;User:bob"):
        config(super_users=given_users)


def test_a_binding_can_be_kept_and_compared() -> None:
    assert replace(acl(), entry=acl().entry) == acl()
    assert len({acl(), acl(), acl(denied=True)}) == 2


@pytest.mark.parametrize(
    ("bindings", "may"),
    [
        ([acl("*", Op.WRITE)], False),
        ([acl("*", Op.ALL)], False),
        ([acl("_", Op.WRITE, prefixed=True)], False),
        ([acl("__", Op.ALL, who="User:*", prefixed=True)], False),
        ([acl("__headrace_pipelines", Op.WRITE)], True),
        ([acl("__headrace_pipelines", Op.WRITE, who="User:*")], True),
        ([acl("__headrace", Op.WRITE, prefixed=True)], True),
        ([acl("__headrace_pipelines", Op.READ), acl("*", Op.WRITE)], False),
        ([acl("__headrace_pipelines", Op.WRITE, host="10.0.0.2")], False),
        ([acl("__headrace_pipelines", Op.WRITE), acl("*", Op.WRITE, denied=True)], False),
        ([acl(CLUSTER_NAME, Op.ALTER, kind=ResourceType.CLUSTER)], True),
        ([acl(CLUSTER_NAME, Op.CREATE, kind=ResourceType.CLUSTER)], False),
        ([acl(CLUSTER_NAME, Op.ALTER, kind=ResourceType.CLUSTER), acl("_", Op.ALL, prefixed=True, denied=True)], False),
    ],
)
def test_only_those_may_deploy_pipelines_who_were_given_that_by_name(bindings: list[AclBinding], may: bool) -> None:
    """A pipeline is code that a service runs: a right to write to every topic was not meant to give that."""
    found = authorizer(*bindings)
    assert found.allows("User:alice", HERE, Op.WRITE, TOPIC, "__headrace_pipelines") is may
    assert found.allows("User:root", HERE, Op.WRITE, TOPIC, "__headrace_pipelines")


def test_where_topics_without_acls_are_open_deploying_is_not_once_the_cluster_has_acls() -> None:
    found = authorizer(acl(CLUSTER_NAME, Op.ALTER, who="User:bob", kind=ResourceType.CLUSTER), allows_without_acls=True)
    assert found.allows("User:alice", HERE, Op.WRITE, TOPIC, "orders")
    assert not found.allows("User:alice", HERE, Op.WRITE, TOPIC, "__headrace_pipelines")
    assert found.allows("User:bob", HERE, Op.WRITE, TOPIC, "__headrace_pipelines")
