"""Dead letters on their way to a topic."""

import os
from collections.abc import Callable, Mapping

import pyarrow as pa

from headrace.client.columnar.cluster import shared_cluster
from headrace.client.columnar.model import UnknownTopic
from headrace.client.columnar.settings import ALIASES, SETTINGS, WITHOUT_EFFECT
from headrace.client.columnar.writer import Writer

from .errors import OptionError

DeadLetters = Callable[[pa.RecordBatch], None]
"""Writes rows of `key`, `value` and `headers`; when it returns, they are safe."""

_TRANSACTIONAL = "transactional.id"
_writers: dict[tuple[int, str, frozenset[tuple[str, str]]], Writer] = {}


def dead_letter_writer(topic: str, client: Mapping[str, str]) -> DeadLetters:
    """What writes to a topic, given the client's settings. A process has one writer for both, as an executor's worker
    outlives its tasks; a process that was forked from it has its own.
    """
    known = {*SETTINGS, *ALIASES, *WITHOUT_EFFECT} - {_TRANSACTIONAL}
    settings = {name: value for name, value in client.items() if name in known}
    key = (os.getpid(), topic, frozenset(settings.items()))

    def write(rows: pa.RecordBatch) -> None:
        writer = _writers.pop(key, None) or Writer(shared_cluster(settings), acks="all", idempotent=True)
        try:
            writer.write(rows, topic)
            writer.flush()
        except UnknownTopic as error:
            raise OptionError(f"deadLetterTopic={topic}: there is no such topic; create it") from error
        _writers[key] = writer  # one that failed is of no further use

    return write
