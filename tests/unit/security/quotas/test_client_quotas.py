"""Who is limited to what, and how much that lets through; time is the test's."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cluster.entries import EntryKind
from headrace.cluster.image import ClusterImage
from headrace.security.quotas.bucket import Bucket
from headrace.security.quotas.client_quotas import MOST_BUCKETS, ClientQuotas, QuotaTable
from headrace.security.quotas.entities import Entity, entry_name

RATE = "producer_byte_rate"
MEGABYTE = 1_000_000


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def image() -> ClusterImage:
    return ClusterImage(cluster_id="c", controller_id=1)


def put(image: ClusterImage, *entity: tuple[str, str | None], **quotas: float) -> None:
    values = {key: repr(value) for key, value in quotas.items()}
    image.put_entry(EntryKind.QUOTA, entry_name(entity), values)


@pytest.fixture
def quotas(time: Time, image: ClusterImage) -> ClientQuotas:
    client_quotas = ClientQuotas(time)
    client_quotas.follow(image)
    return client_quotas


NAMES = st.sampled_from(["a", "b", None])
ENTITIES = st.one_of(
    st.tuples(st.tuples(st.just("user"), NAMES)),
    st.tuples(st.tuples(st.just("client-id"), NAMES)),
    st.tuples(st.tuples(st.just("user"), NAMES), st.tuples(st.just("client-id"), NAMES)),
)


def by_kafkas_order(rates: dict[Entity, float], user: str, client: str) -> tuple[float, Entity] | None:
    """Kafka's documentation, line by line: the rate, and who is counted together."""
    pair: Entity = (("user", user), ("client-id", client))
    alone: Entity = (("user", user),)
    app: Entity = (("client-id", client),)
    order: list[tuple[Entity, Entity]] = [
        (pair, pair),
        ((("user", user), ("client-id", None)), pair),
        (alone, alone),
        ((("user", None), ("client-id", client)), pair),
        ((("user", None), ("client-id", None)), pair),
        ((("user", None),), alone),
        (app, app),
        ((("client-id", None),), app),
    ]
    return next(((rates[entity], shared) for entity, shared in order if entity in rates), None)


@given(st.lists(st.tuples(ENTITIES, st.one_of(st.none(), st.integers(1, 9)))))
def test_the_first_entity_in_kafkas_order_counts(changes: list[tuple[Entity, int | None]]) -> None:
    table, rates = QuotaTable(), dict[Entity, float]()
    for entity, rate in changes:
        table.put(entity, {} if rate is None else {RATE: rate})
        if rate is None:
            rates.pop(entity, None)
        else:
            rates[entity] = rate
    assert bool(table) is bool(rates)
    for user in ("a", "b", "c", ""):
        for client in ("a", "b", "c", ""):
            resolved, expected = table.resolve(RATE, user, client), by_kafkas_order(rates, user, client)
            if expected is None:
                assert resolved is None
                continue
            names = dict(expected[1])
            assert resolved == (expected[0], (names.get("user"), names.get("client-id")))


def test_each_quota_is_looked_for_by_itself(image: ClusterImage, quotas: ClientQuotas) -> None:
    put(image, ("user", "alice"), producer_byte_rate=10.0)
    put(image, ("client-id", "app"), consumer_byte_rate=20.0, request_percentage=50.0)
    limits = quotas.limits_of("alice", "app")
    assert limits is not None
    assert limits.produce is not None
    assert limits.fetch is not None
    assert limits.request is not None
    assert (limits.produce.rate, limits.fetch.rate, limits.request.rate) == (10.0, 20.0, 0.5)
    other = quotas.limits_of("bob", "tool")
    assert other is None


def test_those_whom_an_entity_names_share_its_bucket(image: ClusterImage, quotas: ClientQuotas) -> None:
    put(image, ("user", "alice"), producer_byte_rate=10.0)
    put(image, ("user", None), producer_byte_rate=10.0)

    def bucket(user: str, client: str) -> Bucket:
        limits = quotas.limits_of(user, client)
        assert limits is not None
        assert limits.produce is not None
        return limits.produce

    assert bucket("alice", "x") is bucket("alice", "y")
    assert bucket("bob", "x") is bucket("bob", "y")
    assert bucket("bob", "x") is not bucket("carol", "x")
    put(image, ("user", None), ("client-id", None), producer_byte_rate=10.0)
    assert bucket("bob", "x") is not bucket("bob", "y")


def test_a_change_counts_at_once_and_is_told(image: ClusterImage, quotas: ClientQuotas) -> None:
    told: list[bool] = []
    quotas.on_change(lambda: told.append(quotas.is_on))
    assert quotas.limits_of("alice", "x") is None
    put(image, ("user", "alice"), producer_byte_rate=10.0)
    assert quotas.limits_of("alice", "x") is not None
    put(image, ("user", "alice"))
    assert quotas.limits_of("alice", "x") is None
    assert told == [True, False]


def test_quotas_that_are_there_already_are_taken_up(time: Time, image: ClusterImage) -> None:
    put(image, ("user", "alice"), producer_byte_rate=10.0)
    quotas = ClientQuotas(time)
    quotas.follow(image)
    assert quotas.is_on


def test_names_that_clients_make_up_take_bounded_memory(time: Time, image: ClusterImage, quotas: ClientQuotas) -> None:
    put(image, ("client-id", None), producer_byte_rate=10.0)
    first = quotas.limits_of("u", "0")
    assert first is not None
    assert first.produce is not None
    first.produce.charge(1_000_000, time.now)
    for number in range(MOST_BUCKETS + 100):
        quotas.limits_of("u", str(number))
    assert len(quotas._buckets) <= MOST_BUCKETS
    again = quotas.limits_of("u", "0")
    assert again is not None
    assert again.produce is first.produce, "who is in debt stays so"


def test_long_names_that_clients_make_up_take_no_more_memory(image: ClusterImage, quotas: ClientQuotas) -> None:
    put(image, ("client-id", None), producer_byte_rate=10.0)
    long = "x" * 32_000
    put(image, ("client-id", long[:1_000]), producer_byte_rate=20.0)
    made_up, named = quotas.limits_of("u", long), quotas.limits_of("u", long[:1_000])
    assert made_up is not None
    assert named is not None
    assert made_up.produce is not None
    assert named.produce is not None
    assert (made_up.produce.rate, named.produce.rate) == (10.0, 20.0)
    quotas.mutations_of("u", long)
    assert all(len(client) <= 1_000 for _, client in quotas._limits)
    assert all(len(client or "") <= 1_000 for _, (_, client) in quotas._buckets)
    assert quotas.limits_of("u", long[:-1]) is made_up, "another end is no new name"


def test_connections_have_the_rate_of_their_address_or_the_default(image: ClusterImage, quotas: ClientQuotas) -> None:
    assert quotas.connection_rate("10.0.0.1") is None
    put(image, ("ip", None), connection_creation_rate=5.0)
    put(image, ("ip", "2001:DB8:0::1"), connection_creation_rate=7.0)
    assert quotas.connection_rate("10.0.0.1") == (5.0, "10.0.0.1")
    assert quotas.connection_rate("2001:db8::1") == (7.0, "2001:db8::1")
    assert not quotas.is_on, "requests are not limited by it"


def sent_in(seconds: float, bucket: Bucket, size: int, *, gap: float = 0.0, start: float = 0.0) -> int:
    """What a client gets through that sends as fast as it is let, a request at a time."""
    now, sent = start, 0
    while now < start + seconds:
        pause = bucket.charge(size, now)
        sent += size
        now += max(pause, gap, 1e-5)
    return sent


@pytest.mark.parametrize("size", [100, 16_384, 1_000_000])
def test_a_client_of_one_megabyte_a_second_stays_within_a_tenth_over_any_twenty_seconds(size: int) -> None:
    bucket = Bucket(MEGABYTE, burst_seconds=1.0, most_debt_seconds=600.0, now=0.0)
    for window in range(3):
        sent = sent_in(20, bucket, size, start=window * 20.0)
        assert abs(sent - 20 * MEGABYTE) <= 0.1 * 20 * MEGABYTE


def test_many_connections_together_are_limited_as_one() -> None:
    """Each may have one request through before it learns of the others."""
    bucket = Bucket(MEGABYTE, burst_seconds=1.0, most_debt_seconds=600.0, now=0.0)
    free_at, sent = [0.0] * 50, dict.fromkeys(range(3), 0)
    while (now := min(free_at)) < 60:
        free_at[free_at.index(now)] = now + max(bucket.charge(100_000, now), 1e-4)
        sent[int(now // 20)] += 100_000
    assert sent[0] <= 20 * MEGABYTE + MEGABYTE + 50 * 100_000
    assert all(abs(sent[window] - 20 * MEGABYTE) <= 2 * MEGABYTE for window in (1, 2))


def test_a_client_below_its_quota_never_waits() -> None:
    bucket = Bucket(MEGABYTE, burst_seconds=1.0, most_debt_seconds=600.0, now=0.0)
    assert all(bucket.charge(90_000, number / 10) == 0 for number in range(1, 1000))


def test_the_pause_is_what_the_rate_needs_and_ends_with_it() -> None:
    bucket = Bucket(100.0, burst_seconds=1.0, most_debt_seconds=600.0, now=0.0)
    assert bucket.charge(350, 0.0) == 2.5
    assert bucket.pause(1.0) == 1.5
    assert bucket.pause(2.5) == 0.0
    assert not bucket.is_full(2.5)
    assert bucket.is_full(3.5)


def test_a_debt_has_a_bound() -> None:
    bucket = Bucket(1.0, burst_seconds=1.0, most_debt_seconds=600.0, now=0.0)
    assert bucket.charge(1 << 30, 0.0) == 600.0


def test_time_that_goes_back_gives_nothing_and_takes_nothing() -> None:
    bucket = Bucket(100.0, burst_seconds=1.0, most_debt_seconds=600.0, now=100.0)
    assert bucket.charge(200, 100.0) == 1.0
    assert bucket.pause(50.0) == 1.0


def test_what_is_given_back_fills_no_bucket_beyond_its_burst() -> None:
    bucket = Bucket(1.0, burst_seconds=10.0, most_debt_seconds=600.0, now=0.0)
    bucket.charge(-1_000, 0.0)
    bucket.charge(15, 0.0)
    assert bucket.pause(0.0) == 5.0
    assert bucket.room(0.0) == 595.0


def test_mutations_may_burst_as_kip_599_lets_them(image: ClusterImage, time: Callable[[], float]) -> None:
    quotas = ClientQuotas(time)
    quotas.follow(image)
    put(image, ("user", "alice"), controller_mutation_rate=2.0)
    bucket = quotas.mutations_of("alice", "x")
    assert bucket is not None
    assert bucket.charge(22, time()) == 0.0
    assert bucket.charge(1, time()) == 0.5
    assert quotas.mutations_of("bob", "x") is None
