"""What fits in a commit, and the store's operations in ZooKeeper's terms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kazoo.exceptions import (
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)

from headrace.cluster.commits import MAX_COMMIT_BYTES, CommitTooLarge, ancestors, portions, refuse_bad_commit, size_of
from headrace.cluster.store import (
    AlreadyExists,
    Check,
    Create,
    Delete,
    NotFound,
    Operation,
    Put,
    StoreError,
    VersionConflict,
)
from headrace.cluster.znodes import (
    Failed,
    Husk,
    Znode,
    ZooKeeperAddress,
    first_failure,
    parents_needed,
    parse_url,
    verdict,
    with_crack,
    with_husks,
)

GUARD = Check("/controller_epoch", 3)


@given(st.lists(st.lists(st.integers(0, 400_000), min_size=1, max_size=2), max_size=12))
def test_portions_fit_and_hold_all_groups_whole_and_in_order(sizes: list[list[int]]) -> None:
    groups = [[Put(f"/t/{n}/{m}", bytes(size), 0) for m, size in enumerate(group)] for n, group in enumerate(sizes)]
    commits = list(portions(groups, [GUARD]))
    for commit in commits:
        refuse_bad_commit(commit)
        assert commit[0] == GUARD
    assert [operation for commit in commits for operation in commit[1:]] == [one for group in groups for one in group]
    homes = [{at for at, commit in enumerate(commits) if one in commit} for group in groups for one in group[:1]]
    for group, home in zip(groups, homes, strict=True):
        assert all(one in commits[at] for one in group for at in home)


def test_portions_are_as_few_as_fit() -> None:
    groups = [[Put(f"/t/{n:04}", bytes(864), 0)] for n in range(2000)]
    assert size_of(groups[0][0]) == 999
    assert [len(commit) for commit in portions(groups)] == [1001, 999]


def test_a_group_that_no_commit_holds_is_left_to_be_refused() -> None:
    (commit,) = portions([[Put("/t", bytes(MAX_COMMIT_BYTES), 0)]])
    with pytest.raises(CommitTooLarge, match="divide it"):
        refuse_bad_commit(commit)


def test_ancestors_are_named_from_the_top() -> None:
    assert list(ancestors("/a/b/c")) == ["/a", "/a/b"]
    assert list(ancestors("/a")) == []


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("zookeeper://h:2181", ZooKeeperAddress("h:2181", "")),
        ("zookeeper://h1:2181,h2:2182/", ZooKeeperAddress("h1:2181,h2:2182", "")),
        ("zookeeper://h/headrace/test/", ZooKeeperAddress("h", "/headrace/test")),
        ("zookeeper://[::1]:2181/a", ZooKeeperAddress("[::1]:2181", "/a")),
    ],
)
def test_urls(url: str, place: ZooKeeperAddress) -> None:
    assert parse_url(url) == place


@pytest.mark.parametrize(
    "url",
    ["h:2181", "zookeeper://", "zookeeper://h:no", "zookeeper://h:99999", "zookeeper://h,,i", "zookeeper://h/a//b"],
)
def test_what_is_no_url_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(StoreError, match="zookeeper://HOST:2181/PATH"):
        parse_url(url)


OPERATIONS: list[Operation] = [
    Create("/topics/a", b""),
    Create("/topics/a/1", b""),
    Delete("/x/y", 0),
    Create("/brokers/ids/1", b""),
    Create("/brokers/ids/2", b""),
]


def test_parents_are_needed_unless_an_operation_makes_them_in_time() -> None:
    assert parents_needed(OPERATIONS) == ["/topics", "/brokers", "/brokers/ids"]
    assert parents_needed([*OPERATIONS[1:], OPERATIONS[0]])[:2] == ["/topics", "/topics/a"]


def test_missing_parents_are_made_right_before_they_are_needed() -> None:
    steps = with_husks(OPERATIONS, ["/topics", "/brokers", "/brokers/ids"])
    assert [step.key for step in steps if isinstance(step, Husk)] == ["/topics", "/brokers", "/brokers/ids"]
    assert [step.key for step in steps] == [
        *("/topics", "/topics/a", "/topics/a/1", "/x/y"),
        *("/brokers", "/brokers/ids", "/brokers/ids/1", "/brokers/ids/2"),
    ]
    assert with_husks(OPERATIONS, []) == OPERATIONS


def test_a_husk_in_the_way_goes_right_before_the_creation() -> None:
    steps = with_crack(OPERATIONS, OPERATIONS[1], Znode(None, 4, 9, 0))
    assert [step.key for step in steps[:3]] == ["/topics/a", "/topics/a/1", "/topics/a/1"]
    assert len(steps) == len(OPERATIONS) + 1


def test_the_failure_of_a_transaction_is_that_of_its_first_bad_step() -> None:
    steps = OPERATIONS[:4]
    results: list[object] = [RolledBackError(), NodeExistsError(), RuntimeInconsistency(), RuntimeInconsistency()]
    failed = first_failure(steps, results)
    assert failed is not None
    assert failed.step is steps[1]
    assert isinstance(failed.error, NodeExistsError)
    assert first_failure(steps, ["/topics/a", "/topics/a/1", True, "/brokers/ids/1"]) is None


@pytest.mark.parametrize(
    ("step", "error", "expected"),
    [
        (Create("/a", b""), NodeExistsError(), AlreadyExists),
        (Put("/a", b"", 0), BadVersionError(), VersionConflict),
        (Put("/a", b"", 0), NoNodeError(), NotFound),
        (Check("/a", 0), NoNodeError(), NotFound),
        (Delete("/a", 0), NotEmptyError(), StoreError),
        (Create("/a/b", b""), NoNodeError(), StoreError),
    ],
)
def test_verdicts(step: Operation, error: Exception, expected: type[Exception]) -> None:
    assert type(verdict(Failed(step, error))) is expected
    assert step.key in str(verdict(Failed(step, error)))
