"""What a topic demands of a batch."""

from dataclasses import replace

import pytest

from headrace.protocol.batch import check_batch
from headrace.protocol.compression import NONE, ZSTD
from headrace.protocol.errors import ErrorCode, RecordsRefused
from headrace.protocol.records import Record, encode_batch
from headrace.replication.intake import admit
from tests.intake import RULES

COMPACTED = replace(RULES, compacted=True)


def keyed(*keys: bytes | None, codec: int = NONE) -> memoryview:
    return memoryview(encode_batch([Record(at, 1, key, b"v", ()) for at, key in enumerate(keys)], codec=codec))


@pytest.mark.parametrize("codec", [NONE, ZSTD])
def test_records_without_a_key_are_named_when_a_compacted_topic_refuses_them(codec: int) -> None:
    batch = keyed(b"a", None, b"", None, codec=codec)
    with pytest.raises(RecordsRefused) as refused:
        admit(batch, check_batch(batch), COMPACTED, now_ms=1, version=9)
    assert refused.value.code is ErrorCode.invalid_record
    assert [place for place, _ in refused.value.records] == [1, 3]


def test_a_compacted_topic_takes_a_batch_in_which_every_record_has_a_key() -> None:
    batch = keyed(b"a", b"")
    assert admit(batch, check_batch(batch), COMPACTED, now_ms=1, version=9)[0] is batch
