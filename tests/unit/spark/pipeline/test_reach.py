"""Whether brokers answer, asked beside the queries."""

from collections.abc import Collection
from pathlib import Path

from headrace.client.columnar.model import TopicPartition, UnknownTopic
from headrace.client.errors import ClientError, ClusterUnreachable
from headrace.spark.pipeline.reach import BrokerProbe, Outage, clients_of
from tests.support.spark.declarations import declare

TWO_CLUSTERS = """
name: bridge
sources:
  here: {topic: a}
  there: {topic: b, kafka.bootstrap.servers: 'far:9092', kafka.client.id: bridge}
sinks:
  copy: {from: here, topic: c}
  back: {from: there, topic: d, kafka.bootstrap.servers: 'third:9092'}
"""


def test_an_outage_lasts_from_its_first_question_to_the_first_answer() -> None:
    times = iter([10.0, 12.0, 14.0, 16.0])
    answers = iter([None, "no broker answers at a", "no broker answers at b", None])

    def probe() -> None:
        message = next(answers)
        if message is not None:
            raise ClusterUnreachable(message)

    reach = BrokerProbe([probe], clock=lambda: next(times))
    seen = []
    for _ in range(4):
        reach.look()
        seen.append(reach.outage)
    assert seen == [None, Outage("no broker answers at a", 12.0), Outage("no broker answers at b", 12.0), None]


def test_the_ends_of_what_is_followed_are_looked_up_and_a_topic_that_is_gone_is_no_outage() -> None:
    where = TopicPartition("orders", 0)
    answers: list[dict[TopicPartition, int] | ClientError] = [{where: 7}, UnknownTopic("orders")]
    asked = []

    def ends(partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        asked.append(set(partitions))
        answer = answers.pop(0)
        if isinstance(answer, ClientError):
            raise answer
        return answer

    reach = BrokerProbe([], ends)
    reach.look()
    assert reach.ends == {}
    reach.follow([where])
    reach.look()
    assert reach.ends == {where: 7}
    reach.look()
    assert reach.ends == {}
    assert reach.outage is None
    assert asked == [{where}, {where}]


def test_every_cluster_is_asked_with_the_settings_of_who_uses_it(tmp_path: Path) -> None:
    clients = clients_of(declare(tmp_path, TWO_CLUSTERS), "near:9092")
    assert [client["bootstrap.servers"] for client in clients] == ["near:9092", "far:9092", "third:9092"]
    assert clients[1]["client.id"] == "bridge"
