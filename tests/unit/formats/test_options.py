"""What the options say, and how those are refused that cannot be meant."""

from pathlib import Path

import pytest

from headrace.client.errors import ClientError
from headrace.formats import OPTION_NAMES, OptionError, decoder_for
from headrace.formats.options import read_options

JSON = {"format": "json", "schema": "id BIGINT"}


def refusal(options: dict[str, str]) -> str:
    with pytest.raises(OptionError) as caught:
        decoder_for(options)
    return str(caught.value)


def test_records_stay_as_they_are_unless_a_format_is_set() -> None:
    assert decoder_for({}) is None
    assert decoder_for({"format": "raw", "keyFormat": "raw", "subscribe": "orders"}) is None


def test_every_option_is_taken_in_any_case() -> None:
    read = read_options({"FORMAT": "JSON", "keyformat": "String", "SCHEMA": "id BIGINT", "timezone": "Europe/Oslo"})
    assert (read.format, read.key_format, read.schema, read.time_zone) == ("json", "string", "id BIGINT", "Europe/Oslo")


def test_the_names_of_all_options_are_told() -> None:
    assert {"format", "keyFormat", "schema", "descriptorFile", "messageName", "framing", "badRecords"} <= OPTION_NAMES


def test_an_unknown_format_is_refused_with_the_nearest_one() -> None:
    assert refusal({"format": "jsn"}).startswith("format=jsn is not known")
    assert refusal({"format": "jsn"}).endswith("json-schema; did you mean json?")
    assert "keyFormat=json" in refusal({"keyFormat": "json"})
    assert "framing=apicurio" in refusal({**JSON, "framing": "apicurio"})


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({"format": "json"}, "format=json needs the option schema"),
        ({"format": "avro", "schema": "  "}, "format=avro needs the option schema"),
        ({"format": "protobuf"}, "format=protobuf needs the option descriptorFile"),
    ],
)
def test_a_missing_schema_is_said_with_what_to_set(options: dict[str, str], missing: str) -> None:
    assert missing in refusal(options)


def test_a_message_name_is_needed_beside_the_descriptors(tmp_path: Path) -> None:
    (tmp_path / "shop.desc").write_bytes(b"")
    assert "needs the option messageName" in refusal(
        {"format": "protobuf", "descriptorFile": str(tmp_path / "shop.desc")}
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"schema": "id BIGINT"}, "schema has no use with format=raw; set format=json or format=avro"),
        ({"format": "string", "messageName": "Order"}, "messageName has no use with format=string"),
        ({"badRecords": "column"}, "badRecords has no use where nothing is decoded"),
        ({"deadLetterTopic": "dead"}, "deadLetterTopic has no use where nothing is decoded"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(options: dict[str, str], said: str) -> None:
    assert said in refusal(options)


@pytest.mark.parametrize("chosen", ["json", "avro", "protobuf"])
def test_ids_of_schemas_are_never_dropped(chosen: str) -> None:
    said = refusal({"format": chosen, "framing": "confluent"})
    assert "framing=confluent needs the option schema.registry.url" in said
    assert "format=json-schema needs" in refusal({"format": "json-schema"})


def test_where_there_is_a_registry_values_carry_ids_unless_it_is_said() -> None:
    registry = {"schema.registry.url": "http://r1:8081, http://r2:8081/"}
    read = read_options({**JSON, **registry})
    assert read.framing == "confluent"
    assert read.registry is not None
    assert read.registry.urls == ("http://r1:8081", "http://r2:8081/")
    assert read_options({**JSON, **registry, "framing": "none"}).framing == "none"


def test_a_subject_is_that_of_the_topic_unless_it_is_named() -> None:
    options = {"format": "avro", "schema.registry.url": "http://r"}
    assert read_options({**options, "subscribe": "orders"}).subject == "orders-value"
    assert read_options({**options, "assign": '{"orders": [0]}'}).subject == "orders-value"
    assert read_options({**options, "subscribe": "a,b", "subject": ":.team:s"}).context == ":.team:s"


def test_what_confluents_clients_are_told_is_understood_here() -> None:
    told = {
        "schema.registry.url": "http://r",
        "basic.auth.credentials.source": "USER_INFO",
        "schema.registry.basic.auth.user.info": "ann:pass",
        "schema.registry.timeout.ms": "1500",
    }
    registry = read_options({**JSON, **told}).registry
    assert registry is not None
    assert (registry.user_info, registry.seconds) == ("ann:pass", 1.5)
    assert "pass" not in repr(registry)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"schema.registry.url": "registry:8081"}, "is not the URL of a schema registry"),
        ({"basic.auth.user.info": "a:b"}, "has no use without schema.registry.url"),
        ({"schema.registry.url": "http://r", "basic.auth.credentials.source": "KRB"}, "is not known; set USER_INFO"),
        ({"schema.registry.url": "http://r", "basic.auth.credentials.source": "USER_INFO"}, "needs basic.auth.user"),
        ({"schema.registry.url": "http://r", "schema.registry.ssl.ca.location": "/no/such"}, "there is no file"),
        ({"schema.registry.url": "http://r", "schema.registry.timeout.ms": "soon"}, "must be a number"),
        ({"schema.registry.url": "http://r", "subject.version": "first"}, "is not a version"),
    ],
)
def test_a_registry_that_cannot_be_meant_is_refused(more: dict[str, str], said: str) -> None:
    assert said in refusal({**JSON, **more})


def test_dead_letters_are_asked_for_in_either_way() -> None:
    assert read_options({**JSON, "deadLetterTopic": "dead"}).dead_letter_topic == "dead"
    assert read_options({**JSON, "badRecords": "deadLetterTopic=dead"}).dead_letter_topic == "dead"
    assert read_options({**JSON, "badRecords": "column"}).dead_letter_topic == ""


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"badRecords": "drop"}, "badRecords=drop is not known"),
        ({"badRecords": "deadLetterTopic"}, "needs a topic"),
        ({"badRecords": "column", "deadLetterTopic": "dead"}, "contradict each other"),
        ({"subscribe": "orders, dead", "deadLetterTopic": "dead"}, "is a topic that is read"),
        ({"subscribePattern": "orders.*", "deadLetterTopic": "orders-dead"}, "is a topic that is read"),
        ({"assign": '{"orders": [0], "dead": [0]}', "deadLetterTopic": "dead"}, "is a topic that is read"),
        ({"timeZone": "Mars/Base"}, "timeZone=Mars/Base is not a time zone"),
        ({"timeZone": "../etc"}, "is not a time zone"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(more: dict[str, str], said: str) -> None:
    assert said in refusal({**JSON, **more})


def test_a_schema_may_be_in_a_file_that_executors_need_not_have(tmp_path: Path) -> None:
    place = tmp_path / "order.ddl"
    place.write_text("id BIGINT,\n name STRING")
    read = read_options({"format": "json", "schema": str(place)})
    place.unlink()
    assert read.schema == "id BIGINT,\n name STRING"


def test_a_file_that_is_not_there_is_named() -> None:
    assert "schema: cannot read the file 'missing.avsc'" in refusal({"format": "avro", "schema": "missing.avsc"})
    assert "descriptorFile: cannot read the file '/no/such'" in refusal(
        {"format": "protobuf", "descriptorFile": "/no/such", "messageName": "x"}
    )


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    place = tmp_path / "order.avsc"
    place.write_bytes(b"\xff\xfe")
    assert "not UTF-8" in refusal({"format": "avro", "schema": str(place)})


def test_the_settings_of_the_client_are_taken_along() -> None:
    read = read_options({**JSON, "kafka.bootstrap.servers": "h:9092", "includeHeaders": "true", "subscribe": "orders"})
    assert read.client == {"bootstrap.servers": "h:9092"}
    assert read.include_headers


def test_a_refusal_is_an_error_of_the_client_with_a_code() -> None:
    with pytest.raises(ClientError) as caught:
        decoder_for({"format": "xml"})
    assert caught.value.code == "INVALID_CONFIG"
