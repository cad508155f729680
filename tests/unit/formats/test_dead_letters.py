"""Dead letters in a topic, through a broker."""

from collections.abc import Iterator

import pytest

from headrace.client.columnar import read_arrow
from headrace.formats import OptionError, decoder_for
from headrace.testing import Broker

from .test_decoder import HEADERS, JSON, batch

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        yield started


def options(broker: Broker, topic: str) -> dict[str, str]:
    return {
        **JSON,
        "deadLetterTopic": topic,
        "kafka.bootstrap.servers": broker.bootstrap,
        "kafka.group.id": "of no use here",
        "kafka.transactional.id": "nor this",
    }


def test_bad_records_are_in_the_topic_when_the_good_ones_are_given(broker: Broker) -> None:
    topic = broker.create_topic("dead")
    decoder = decoder_for(options(broker, topic))
    assert decoder is not None
    for value in (b"oops", b"{"):
        found = decoder.decode(batch([b'{"id": 1}', value], [b"a", b"b"], [None, HEADERS]))
        assert found.column("offset").to_pylist() == [100]
    letters = read_arrow(topic, bootstrap=broker.bootstrap, headers=True).to_pylist()
    assert [(letter["key"], letter["value"]) for letter in letters] == [(b"b", b"oops"), (b"b", b"{")]
    assert letters[0]["headers"][:2] == HEADERS
    assert letters[0]["headers"][3] == {"key": "headrace.topic", "value": b"orders"}
    assert letters[0]["headers"][5] == {"key": "headrace.offset", "value": b"101"}


def test_a_topic_that_is_not_there_stops_the_query_and_is_named(broker: Broker) -> None:
    decoder = decoder_for(options(broker, "nowhere"), {"bootstrap.servers": broker.bootstrap})
    assert decoder is not None
    with pytest.raises(OptionError, match="deadLetterTopic=nowhere: there is no such topic; create it"):
        decoder.decode(batch([b"oops"]))
