"""Who is to lead by an unclean election, and what is told of it first."""

import pytest

from headrace.cli.cluster.elections import choices, show_choices, values_of_choices
from headrace.cli.console import Failure
from headrace.ops.overview import PartitionView
from headrace.protocol.topic_partition import TopicPartition

ORDERS = PartitionView(topic="orders", partition=0, leader=None, leader_epoch=4, replicas=(1, 2, 3), isr=())
ENDS = {TopicPartition("orders", 0): {1: (3, 10), 2: (4, 8)}}


def test_the_longest_log_is_chosen_and_what_is_not_known_is_named() -> None:
    (choice,) = choices([ORDERS], ENDS, None)
    assert (choice.leader, choice.missing, choice.unknown) == (2, 2, [3])
    (value,) = values_of_choices([choice])
    assert value["replicas"] == [
        {"broker": 1, "last_epoch": 3, "log_end": 10},
        {"broker": 2, "last_epoch": 4, "log_end": 8},
    ]


def test_a_replica_that_is_named_is_chosen_if_it_tells_what_it_holds() -> None:
    (choice,) = choices([ORDERS], ENDS, 1)
    assert (choice.leader, choice.missing) == (1, 0)
    with pytest.raises(Failure, match="does not live"):
        choices([ORDERS], ENDS, 3)
    with pytest.raises(Failure, match="holds no replica"):
        choices([ORDERS], ENDS, 9)


def test_a_partition_of_which_nobody_tells_is_left_out() -> None:
    assert choices([ORDERS], {TopicPartition("orders", 0): {}}, None) == []


def test_an_operator_is_told_why_nothing_can_be_elected(capsys: pytest.CaptureFixture[str]) -> None:
    show_choices([], 0)
    assert "every partition that was asked for has a leader" in capsys.readouterr().err
    show_choices([], 2)
    assert "2 partition(s) without a leader have no living replica" in capsys.readouterr().err
