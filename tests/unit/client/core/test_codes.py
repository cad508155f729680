from headrace.client.core.codes import Remedy, code_of, is_retriable, remedy_of
from headrace.protocol.errors import ErrorCode

RETRIED = (Remedy.RETRY, Remedy.REFRESH_METADATA, Remedy.FIND_COORDINATOR, Remedy.FIND_CONTROLLER)


def test_what_kafka_calls_retriable_is_retried_and_nothing_else() -> None:
    for code in ErrorCode:
        assert (remedy_of(code) in RETRIED) is is_retriable(code) is bool(code.retriable), code


def test_each_kind_of_move_is_looked_up_where_it_is_known() -> None:
    assert remedy_of(ErrorCode.not_leader_or_follower) is Remedy.REFRESH_METADATA
    assert remedy_of(ErrorCode.not_coordinator) is Remedy.FIND_COORDINATOR
    assert remedy_of(ErrorCode.not_controller) is Remedy.FIND_CONTROLLER
    assert remedy_of(ErrorCode.not_enough_replicas) is Remedy.RETRY
    assert remedy_of(ErrorCode.rebalance_in_progress) is Remedy.REJOIN_GROUP
    assert remedy_of(ErrorCode.producer_fenced) is Remedy.GIVE_UP_PRODUCER
    assert remedy_of(ErrorCode.topic_authorization_failed) is Remedy.FAIL


def test_a_code_of_the_future_is_an_unknown_error_of_the_server() -> None:
    assert code_of(3) is ErrorCode.unknown_topic_or_partition
    assert code_of(31_000) is ErrorCode.unknown_server_error
