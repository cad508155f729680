"""Logins of a user who has failed take turns, so that nobody guesses faster by hanging up."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from headrace.protocol.errors import ErrorCode
from headrace.security.failed_logins import LONGEST_PAUSE, WRONG_A_SECOND, WRONG_AT_ONCE_SECONDS
from headrace.security.sasl import PLAIN, PlainUsers, plain
from headrace.server.authentication import MOST_WAITING, Authenticator
from headrace.server.connection import Connection
from headrace.testing.loop import run_virtual

RIGHT, WRONG = b"\0alice\0s3cret", b"\0alice\0guess"


class Client:
    """A connection that keeps what it is answered, and when."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.principal = ""
        self.is_known = self.is_held = self.is_closed = False
        self.answer_code: ErrorCode | None = None
        self.answered_at: float | None = None
        self.connection = self

    def open_slot(self) -> "Client":
        return self

    def answer(self, parts: Sequence[Any]) -> None:
        (self.answer_code,) = parts
        self.answered_at = asyncio.get_running_loop().time()

    def set_frame_limit(self, limit: int) -> None:
        pass

    def hold(self) -> None:
        self.is_held = True

    def release(self) -> None:
        self.is_held = False

    def drain(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


class Site:
    """A broker's authenticator, and clients that log in."""

    def __init__(self) -> None:
        self.authenticator = Authenticator(
            asyncio.get_running_loop(), {PLAIN: plain(PlainUsers({"alice": "s3cret", "bob": "t0psecret"}))}, 1 << 20
        )

    def log_in(self, token: bytes, peer: str = "192.0.2.1") -> Client:
        client = Client(peer)
        connection = cast(Connection, client)
        self.authenticator.open(connection)
        self.authenticator.handshake(connection, PLAIN, 1)
        self.authenticator.authenticate(connection, token, lambda values: [values["error_code"]])
        return client


def test_clients_that_hang_up_early_learn_no_more_than_four_verdicts_a_second() -> None:
    async def main() -> None:
        site, seconds, patience = Site(), 60, 0.05
        learned = 0
        for _ in range(int(seconds / patience)):
            guesses = [site.log_in(WRONG) for _ in range(7)]
            guesses.append(site.log_in(RIGHT))
            await asyncio.sleep(patience)
            learned += guesses[-1].answer_code is ErrorCode.none
            for guess in guesses:
                guess.close()
        assert learned <= seconds / LONGEST_PAUSE + 5

    run_virtual(main)


def test_a_stranger_who_guesses_delays_no_other_user_of_the_address() -> None:
    """As at a gateway, behind which all have one address."""

    async def main() -> None:
        site = Site()
        for _ in range(20):
            for _ in range(3):
                site.log_in(WRONG).close()
            bob = site.log_in(b"\0bob\0t0psecret")
            assert (bob.answer_code, bob.principal) == (ErrorCode.none, "User:bob")
            await asyncio.sleep(0.4)

    run_virtual(main)


def test_who_tries_users_in_turn_and_hangs_up_learns_ten_verdicts_a_second_at_most() -> None:
    """A wrong guess counts also where nobody waits for the answer: else the right one would be known by its haste."""

    async def main() -> None:
        site, seconds, patience = Site(), 60, 0.05
        learned, users = 0, 0
        for _ in range(int(seconds / patience)):
            users += 7
            guesses = [site.log_in(b"\0user-%d\0guess" % (users - n)) for n in range(7)]
            guesses.append(site.log_in(RIGHT))
            await asyncio.sleep(patience)
            learned += guesses[-1].answer_code is ErrorCode.none
            for guess in guesses:
                guess.close()
        assert learned <= seconds * WRONG_A_SECOND / 7 + 5

    run_virtual(main)


def test_the_right_password_waits_for_its_turn_behind_failures_of_its_user() -> None:
    async def main() -> None:
        site = Site()
        start = asyncio.get_running_loop().time()
        failures = [site.log_in(WRONG) for _ in range(4)]
        late, last = site.log_in(RIGHT), site.log_in(RIGHT)
        assert not late.is_known
        await asyncio.sleep(10)
        assert all(failure.answer_code is ErrorCode.sasl_authentication_failed for failure in failures)
        assert (late.answer_code, late.principal, late.is_held) == (ErrorCode.none, "User:alice", False)
        assert late.answered_at == last.answered_at, "who is right keeps nobody waiting"
        assert late.answered_at == pytest.approx(start + 0.1 + 0.2 + 2 * LONGEST_PAUSE)

    run_virtual(main)


def test_other_addresses_do_not_wait() -> None:
    async def main() -> None:
        site = Site()
        for _ in range(10):
            site.log_in(WRONG)
        assert site.log_in(RIGHT, "192.0.2.2").answer_code is ErrorCode.none

    run_virtual(main)


def test_no_more_than_so_many_logins_of_an_address_wait() -> None:
    async def main() -> None:
        site = Site()
        of_the_user = int(WRONG_A_SECOND * WRONG_AT_ONCE_SECONDS)
        clients = [site.log_in(WRONG) for _ in range(of_the_user + MOST_WAITING)]
        one_too_many = site.log_in(RIGHT)
        assert (one_too_many.is_closed, one_too_many.answer_code) == (True, None)
        assert not any(client.is_closed for client in clients)
        await asyncio.sleep(60)
        assert site.log_in(RIGHT).answer_code is ErrorCode.none

    run_virtual(main)
