"""What a topic asks of a batch in tests of other things: next to nothing."""

from typing import Final

from headrace.cluster.log_settings import IntakeSettings

RULES: Final = IntakeSettings(
    max_message_bytes=1 << 20,
    append_time=False,
    timestamp_before_max_ms=1 << 62,
    timestamp_after_max_ms=1 << 62,
    requires_keys=False,
    codec=None,
    codec_level=None,
    min_insync_replicas=1,
)
