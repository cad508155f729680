"""A setting of one listener, or of one mechanism on it, goes before that of all."""

import pytest

from headrace.config import BrokerConfig, ConfigError
from headrace.config.per_listener import OwnName, names_for, own_name
from headrace.config.sasl import ENABLED_MECHANISMS, JAAS_CONFIG, MAX_REAUTH_MS

SASL = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:9092,INSIDE://127.0.0.1:9093",
    "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT,INSIDE:SASL_PLAINTEXT",
}


def test_the_narrowest_name_counts() -> None:
    config = BrokerConfig.parse(
        {
            **SASL,
            MAX_REAUTH_MS: "1",
            f"listener.name.inside.{MAX_REAUTH_MS}": "2",
            f"listener.name.inside.scram-sha-512.{MAX_REAUTH_MS}": "3",
        }
    )
    found = {
        (listener, mechanism): config.of_listener(listener, MAX_REAUTH_MS, mechanism)
        for listener in ("SASL_PLAINTEXT", "INSIDE")
        for mechanism in ("PLAIN", "SCRAM-SHA-512", "SCRAM-SHA-256")
    }
    assert found == {
        ("SASL_PLAINTEXT", "PLAIN"): 1,
        ("SASL_PLAINTEXT", "SCRAM-SHA-512"): 1,
        ("SASL_PLAINTEXT", "SCRAM-SHA-256"): 1,
        ("INSIDE", "PLAIN"): 2,
        ("INSIDE", "SCRAM-SHA-512"): 3,
        ("INSIDE", "SCRAM-SHA-256"): 2,
    }


def test_users_of_plain_are_those_of_one_listener_and_never_of_all() -> None:
    config = BrokerConfig.parse(
        {**SASL, JAAS_CONFIG: "of all", "listener.name.inside.plain.sasl.jaas.config": "of one"}
    )
    assert config.of_listener("INSIDE", JAAS_CONFIG, "PLAIN") == "of one"
    assert config.of_listener("SASL_PLAINTEXT", JAAS_CONFIG, "PLAIN") is None
    assert names_for("INSIDE", JAAS_CONFIG, "PLAIN") == ("listener.name.inside.plain.sasl.jaas.config",)


def test_a_value_is_held_to_the_rule_of_its_setting_and_passwords_are_not_shown() -> None:
    with pytest.raises(ConfigError, match="one or more of PLAIN, SCRAM-SHA-256"):
        BrokerConfig.parse({**SASL, f"listener.name.inside.{ENABLED_MECHANISMS}": "GSSAPI"})
    with pytest.raises(ConfigError, match="Unknown broker setting"):
        BrokerConfig.parse({**SASL, "listener.name.inside.num.partitions": "7"})


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("listener.name.a.sasl.enabled.mechanisms", OwnName("a", "", ENABLED_MECHANISMS)),
        ("listener.name.a.plain.sasl.jaas.config", OwnName("a", "plain", JAAS_CONFIG)),
        ("listener.name.a.oauthbearer.connections.max.reauth.ms", OwnName("a", "oauthbearer", MAX_REAUTH_MS)),
        ("listener.name.a.sasl.jaas.config", None),
        ("listener.name.a.gssapi.sasl.jaas.config", None),
        ("listener.name..sasl.enabled.mechanisms", None),
        ("listener.name.a", None),
        ("sasl.enabled.mechanisms", None),
    ],
)
def test_names_are_taken_apart(name: str, parts: OwnName | None) -> None:
    assert own_name(name) == parts
