"""Client files of Kafka's tools and of kcat, as settings of librdkafka."""

import pytest

from headrace.client.properties import (
    BadProperty,
    for_columnar,
    for_librdkafka,
    is_secret,
    masked,
    parse_client_file,
)

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


def of(text: str) -> dict[str, str]:
    return for_librdkafka(parse_client_file(text, "client.properties"))


def test_a_jaas_line_of_java_becomes_user_and_password() -> None:
    jaas = f'sasl.jaas.config={SCRAM} required \\\n  username="al\\\\"ice" password=\'s;3\';'
    text = f"sasl.mechanism=SCRAM-SHA-512\n{jaas}\n"
    assert of(text) == {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": 'al"ice', "sasl.password": "s;3"}


def test_settings_of_java_alone_are_left_out() -> None:
    text = "security.protocol=SASL_SSL\nkey.deserializer=x\nssl.protocol=TLSv1.3\nssl.truststore.password=p\n"
    assert of(text) == {"security.protocol": "SASL_SSL"}


def test_pem_stores_become_locations() -> None:
    trust = "ssl.truststore.type=PEM\nssl.truststore.location=/ca.pem\n"
    text = f"{trust}ssl.keystore.type=PEM\nssl.keystore.location=/me.pem\n"
    assert of(text) == {
        "ssl.ca.location": "/ca.pem",
        "ssl.certificate.location": "/me.pem",
        "ssl.key.location": "/me.pem",
    }


def test_an_empty_identification_algorithm_checks_no_name() -> None:
    assert of("ssl.endpoint.identification.algorithm=\n") == {"ssl.endpoint.identification.algorithm": "none"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "# mine\n\nsasl.usrname=x\n",
            "client.properties line 3: no client has the setting sasl.usrname; did",
        ),
        ("=x\n", "client.properties line 1: there is no name"),
        ("a.b.c.d=1\n", "line 1: no client has the setting a.b.c.d"),
        ("ssl.truststore.location=/x/trust.jks\n", "line 1: /x/trust.jks is a key store of Java's"),
        ("\nsasl.jaas.config=com.sun.Krb5LoginModule required;\n", "line 2: sasl.jaas.config is read for Plain"),
        ("sasl.jaas.config=PlainLoginModule required username=a;\n", "line 1: sasl.jaas.config has no password"),
    ],
)
def test_what_cannot_be_taken_is_told_with_its_line(text: str, expected: str) -> None:
    with pytest.raises(BadProperty) as caught:
        of(text)
    assert expected in caught.value.message


def test_the_columnar_client_is_spared_what_only_librdkafka_has() -> None:
    found = parse_client_file("queued.min.messages=1\nssl.ca.pem=PEM\nsasl.username=a\nretries=3\n", "f")
    assert for_columnar(found) == {"ssl.truststore.certificates": "PEM", "sasl.username": "a"}


def test_addresses_and_the_registry_are_not_for_librdkafka() -> None:
    assert of("bootstrap.servers=b:1\nschema.registry.url=http://r\nbasic.auth.user.info=a:b\n") == {}


def test_secrets_are_masked_and_nothing_else_is() -> None:
    names = ["sasl.password", "sasl.jaas.config", "ssl.key.password", "basic.auth.user.info", "ssl.key.pem"]
    assert all(is_secret(name) for name in names)
    others = ["sasl.username", "ssl.ca.location", "sasl.oauthbearer.token.endpoint.url"]
    assert not any(is_secret(name) for name in others)
    assert masked("sasl.password", "s3cret") == "********"
