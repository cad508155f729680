"""Histories that several clients write at once."""

import sys
import threading

from tests.support.checker.history import History, Operation


def test_threads_that_send_at_once_end_their_own_requests() -> None:
    history = History()
    operations: dict[str, Operation] = {}

    def send(client: str) -> None:
        for number in range(3_000):
            value = f"{client} {number}"
            operations[value] = history.send(client, "t", 0, [value])

    threads = [threading.Thread(target=send, args=(client,)) for client in ("a", "b", "c")]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    sent = {event["id"]: event["values"][0] for event in history.events}
    assert {value: sent[operation.id] for value, operation in operations.items()} == {
        value: value for value in operations
    }
