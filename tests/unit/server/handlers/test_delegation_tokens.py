import base64
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final, TypeVar

import pytest

from headrace.cluster.entries import EntryKind
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.protocol.scram import ScramMechanism
from headrace.security.sasl.credentials import ScramUsers
from headrace.security.sasl.tokens import DelegationTokens, password_of
from headrace.server.context import RequestInfo
from headrace.server.handlers import delegation_tokens
from headrace.server.handlers.delegation_tokens import remove_expired_tokens
from tests.support.handlers import Harness, versions

DAY: Final = 86_400_000
T = TypeVar("T")
ALICE, BOB = "User:alice", "User:bob"


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


class Site(Harness):
    """A broker whose time is the test's."""

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        super().__init__({"delegation.token.secret.key": "k3y"} if settings is None else settings)
        self.clock = Clock()
        object.__setattr__(self.context, "clock", self.clock)

    def by(self, who: str, key: ApiKey, version: int | None = None, *, by_token: bool = False, **values: Any) -> Any:
        version = max(versions(key)) if version is None else version
        return self.ask_as(RequestInfo(key, version, None, who, "127.0.0.1", by_token=by_token), **values)

    def create(self, who: str = ALICE, version: int | None = None, *, by_token: bool = False, **values: Any) -> Any:
        return self.by(who, ApiKey.CREATE_DELEGATION_TOKEN, version, by_token=by_token, **values)

    def described(self, who: str, *owners: str, version: int | None = None) -> list[str]:
        named = [{"principal_type": "User", "principal_name": owner} for owner in owners] or None
        answer = self.by(who, ApiKey.DESCRIBE_DELEGATION_TOKEN, version, owners=named)
        assert answer.error_code is ErrorCode.none
        return [token.token_id for token in answer.tokens]


@pytest.fixture
def site() -> Iterator[Site]:
    harness = Site()
    yield harness
    harness.close()


def ms(time: Any) -> int:
    milliseconds: float = time.timestamp() * 1000
    return round(milliseconds)


@pytest.mark.parametrize("version", versions(ApiKey.CREATE_DELEGATION_TOKEN))
def test_a_token_is_made_in_every_version(site: Site, version: int) -> None:
    token = site.create(version=version)
    now = site.clock.ms
    assert token.error_code is ErrorCode.none
    assert (token.principal_type, token.principal_name) == ("User", "alice")
    times = (ms(token.issue_timestamp), ms(token.expiry_timestamp), ms(token.max_timestamp))
    assert times == (now, now + DAY, now + 7 * DAY)
    assert bytes(token.hmac) == password_of(token.token_id, "k3y")


def test_what_a_token_is_checked_by_is_worked_out_beside_the_loop(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    beside: list[object] = []

    async def in_thread(work: Callable[[], T]) -> T:
        beside.append(work)
        monkeypatch.setattr(delegation_tokens, "MOST_TOKENS", 0)
        return work()

    monkeypatch.setattr(site.replicas, "in_thread", in_thread)
    answer = site.create()
    assert len(beside) == 1
    assert answer.error_code is ErrorCode.policy_violation, "others may have been made meanwhile"


def test_a_shorter_life_can_be_asked_for_and_a_longer_one_is_not_given(site: Site) -> None:
    now = site.clock.ms
    short = site.create(max_lifetime=timedelta(minutes=1))
    assert (ms(short.expiry_timestamp), ms(short.max_timestamp)) == (now + 60_000, now + 60_000)
    assert ms(site.create(max_lifetime=timedelta(days=400)).max_timestamp) == now + 7 * DAY
    assert ms(site.create(max_lifetime=timedelta(milliseconds=-1)).max_timestamp) == now + 7 * DAY


def test_nothing_that_is_kept_is_the_tokens_password(site: Site) -> None:
    token = site.create()
    kept = str(site.image.entries[EntryKind.TOKEN])
    assert bytes(token.hmac).hex() not in kept

    assert base64.b64encode(bytes(token.hmac)).decode() not in kept


def test_who_is_nobody_or_came_by_a_token_makes_none(site: Site) -> None:
    refused = ErrorCode.delegation_token_request_not_allowed
    assert site.create("User:ANONYMOUS").error_code is refused
    assert site.create(by_token=True).error_code is refused
    token = site.create()
    for key in (ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN):
        assert site.by(ALICE, key, by_token=True, hmac=token.hmac).error_code is refused
    answer = site.by("User:ANONYMOUS", ApiKey.DESCRIBE_DELEGATION_TOKEN, owners=None)
    assert (answer.error_code, answer.tokens) == (refused, ())


def test_without_a_key_there_are_no_tokens() -> None:
    site = Site({})
    off = ErrorCode.delegation_token_auth_disabled
    assert site.create().error_code is off
    assert site.by(ALICE, ApiKey.RENEW_DELEGATION_TOKEN, hmac=b"x").error_code is off
    assert site.by(ALICE, ApiKey.EXPIRE_DELEGATION_TOKEN, hmac=b"x").error_code is off
    assert site.by(ALICE, ApiKey.DESCRIBE_DELEGATION_TOKEN, owners=None).error_code is off
    site.close()


def test_only_users_renew(site: Site) -> None:
    group = {"principal_type": "Group", "principal_name": "all"}
    assert site.create(renewers=[group]).error_code is ErrorCode.invalid_principal_type
    many = [{"principal_type": "User", "principal_name": str(number)} for number in range(101)]
    assert site.create(renewers=many).error_code is ErrorCode.invalid_request


def test_a_token_for_somebody_else_is_owned_by_them(site: Site) -> None:
    token = site.create(owner_principal_type="User", owner_principal_name="bob")
    assert (token.principal_name, token.token_requester_principal_name) == ("bob", "alice")
    assert site.described(BOB) == [token.token_id]


@pytest.mark.parametrize("version", versions(ApiKey.RENEW_DELEGATION_TOKEN))
def test_a_token_is_renewed_by_owner_and_renewers_up_to_its_end(site: Site, version: int) -> None:
    def renew(who: str, **period: Any) -> Any:
        return site.by(who, ApiKey.RENEW_DELEGATION_TOKEN, version, hmac=token.hmac, **period)

    token = site.create(renewers=[{"principal_type": "User", "principal_name": "bob"}])
    site.clock.ms += DAY // 2
    assert ms(renew(BOB, renew_period=timedelta(hours=1)).expiry_timestamp) == site.clock.ms + 3_600_000
    assert ms(renew(ALICE, renew_period=timedelta(days=30)).expiry_timestamp) == site.clock.ms + DAY
    assert renew("User:carol").error_code is ErrorCode.delegation_token_owner_mismatch
    for _ in range(20):
        site.clock.ms += DAY // 2
        last = renew(ALICE)
        if last.error_code is not ErrorCode.none:
            break
        assert ms(last.expiry_timestamp) <= ms(token.max_timestamp)
    assert last.error_code is ErrorCode.delegation_token_expired
    unknown = site.by(ALICE, ApiKey.RENEW_DELEGATION_TOKEN, version, hmac=b"unknown")
    assert unknown.error_code is ErrorCode.delegation_token_not_found


@pytest.mark.parametrize("version", versions(ApiKey.EXPIRE_DELEGATION_TOKEN))
def test_a_token_is_ended_at_once_or_later(site: Site, version: int) -> None:
    def expire(who: str, token: Any, seconds: int) -> Any:
        period = timedelta(seconds=seconds)
        return site.by(who, ApiKey.EXPIRE_DELEGATION_TOKEN, version, hmac=token.hmac, expiry_time_period=period)

    token, other = site.create(), site.create()
    assert expire(BOB, token, -1).error_code is ErrorCode.delegation_token_owner_mismatch
    assert expire(ALICE, token, -1).error_code is ErrorCode.none
    assert expire(ALICE, token, -1).error_code is ErrorCode.delegation_token_not_found
    assert ms(expire(ALICE, other, 60).expiry_timestamp) == site.clock.ms + 60_000
    assert site.described(ALICE) == [other.token_id]
    site.clock.ms += 60_001
    assert site.described(ALICE) == []
    assert expire(ALICE, other, 60).error_code is ErrorCode.delegation_token_expired


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_DELEGATION_TOKEN))
def test_tokens_are_described_with_all_that_was_said_of_them(site: Site, version: int) -> None:
    made = site.create(renewers=[{"principal_type": "User", "principal_name": "bob"}])
    answer = site.by(ALICE, ApiKey.DESCRIBE_DELEGATION_TOKEN, version, owners=None)
    (token,) = answer.tokens
    assert (token.token_id, bytes(token.hmac), token.principal_name) == (made.token_id, bytes(made.hmac), "alice")
    assert token.expiry_timestamp == site.clock.ms + DAY
    assert [renewer.principal_name for renewer in token.renewers] == ["bob"]
    assert site.described(ALICE, "carol", version=version) == []
    assert site.described(ALICE, "alice", "carol", version=version) == [made.token_id]


def test_one_owner_has_so_many_tokens_at_most(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delegation_tokens, "MOST_TOKENS", 2)
    codes = [site.create().error_code for _ in range(3)]
    assert codes == [ErrorCode.none, ErrorCode.none, ErrorCode.policy_violation]
    assert site.create(BOB).error_code is ErrorCode.none


def test_tokens_that_are_over_are_removed_and_let_nobody_in(site: Site) -> None:
    token = site.create()
    users = ScramUsers(site.image, b"secret")
    tokens = DelegationTokens(site.image, site.clock, users, "k3y")

    def lets_in() -> bool:
        return tokens.find(ScramMechanism.SHA_256, token.token_id).credential.is_real

    site.run(remove_expired_tokens(site.context))
    assert lets_in()
    site.clock.ms += DAY + 1
    assert not lets_in()
    site.run(remove_expired_tokens(site.context))
    assert not site.image.entries[EntryKind.TOKEN]


def test_a_token_proves_itself_by_scram_for_its_owner(site: Site) -> None:
    token = site.create(owner_principal_type="User", owner_principal_name="bob")
    found = DelegationTokens(site.image, site.clock, ScramUsers(site.image, b"s"), "k3y").find(
        ScramMechanism.SHA_512, token.token_id
    )
    assert (found.principal, found.expires_at_ms, found.credential.is_real) == (BOB, site.clock.ms + DAY, True)
    nobody = DelegationTokens(site.image, site.clock, ScramUsers(site.image, b"s"), "k3y").find(
        ScramMechanism.SHA_512, "nothing"
    )
    assert not nobody.credential.is_real
