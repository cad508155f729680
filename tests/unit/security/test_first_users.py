"""The first users of a cluster, as the command line has them."""

import base64

import pytest

from headrace.config import ConfigError
from headrace.protocol.scram import ScramMechanism, salt_password
from headrace.security.sasl.first_users import ITERATIONS, parse_first_users

SALT = base64.b64encode(b"salt of alice").decode()


def test_users_are_read_as_kafkas_tool_reads_them() -> None:
    text = (
        'SCRAM-SHA-256=[name=alice,password=s3cret];SCRAM-SHA-512=[name="a,b]", password="p\\"w,]", iterations=4096, '
        f'salt="{SALT}"]'
    )
    alice, other = parse_first_users(text)
    assert (alice.name, alice.mechanism, alice.iterations) == ("alice", ScramMechanism.SHA_256, ITERATIONS)
    assert (other.name, other.mechanism, other.iterations) == ("a,b]", ScramMechanism.SHA_512, 4096)
    assert alice.salt != parse_first_users(text)[0].salt
    assert other.upsertion() == {
        "name": "a,b]",
        "mechanism": ScramMechanism.SHA_512,
        "iterations": 4096,
        "salt": b"salt of alice",
        "salted_password": salt_password(ScramMechanism.SHA_512, 'p"w,]', b"salt of alice", 4096),
    }
    assert parse_first_users("") == []


def test_a_password_can_be_given_salted() -> None:
    salted = base64.b64encode(bytes(range(32))).decode()
    (user,) = parse_first_users(f"SCRAM-SHA-256=[name=alice,salt={SALT},saltedpassword={salted}]")
    assert user.upsertion()["salted_password"] == bytes(range(32))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hunter2", "user 1 to add is not written like"),
        ("SCRAM-SHA-256=[name=alice,password=hunter2", "not written like"),
        ("SCRAM-SHA-256=[name=alice,password=hunter2];hunter2", "user 2 to add is not written like"),
        ("SCRAM-SHA-256=[name=alice,password=hunter2] SCRAM", "not written like"),
        ("SCRAM-SHA-1=[name=alice,password=hunter2]", "no mechanism out of SCRAM-SHA-256, SCRAM-SHA-512"),
        ("SCRAM-SHA-256=[password=hunter2]", "no name"),
        ("SCRAM-SHA-256=[name=alice]", "needs a password"),
        ("SCRAM-SHA-256=[name=alice,password=]", "empty password"),
        ("SCRAM-SHA-256=[name=alice,password=hunter2,saltedpassword=AAAA]", "not both"),
        ("SCRAM-SHA-256=[name=alice,saltedpassword=AAAA,salt=AAAA]", "of 32 bytes"),
        ("SCRAM-SHA-256=[name=alice,password=hunter2,salt=!]", "not base64"),
        ("SCRAM-SHA-256=[name=alice,password=hunter2,iterations=4095]", "from 4096 to 16384"),
        ("SCRAM-SHA-256=[name=alice,password=hunter2,iterations=many]", "from 4096 to 16384"),
        ("SCRAM-SHA-256=[name=alice,password=hunter2,who=me]", "unknown: who"),
        ("SCRAM-SHA-256=[name=a,password=hunter2];SCRAM-SHA-256=[name=a,password=b]", "twice"),
    ],
)
def test_what_is_written_wrong_is_said_without_what_was_written(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        parse_first_users(text)
    assert "hunter2" not in str(refused.value)


def test_passwords_are_not_shown() -> None:
    (user,) = parse_first_users("SCRAM-SHA-256=[name=alice,password=hunter2]")
    assert "hunter2" not in repr(user)
