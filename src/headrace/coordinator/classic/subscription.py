"""What consumers write into their metadata: the topics that they subscribe to.

Other kinds of member (Kafka Connect's workers, say) have formats of their own; the broker does not look into those.
"""

from struct import Struct, error
from typing import Final

CONSUMER: Final = "consumer"
_HEAD: Final = Struct(">hi")
_SIZE: Final = Struct(">h")


def subscribed_topics(metadata: bytes) -> set[str] | None:
    """The topics of a consumer's subscription, any version; None when it is not one."""
    topics: set[str] = set()
    try:
        _, count = _HEAD.unpack_from(metadata)
        position = _HEAD.size
        for _ in range(count):
            (size,) = _SIZE.unpack_from(metadata, position)
            position += _SIZE.size
            topics.add(metadata[position : position + size].decode())
            position += size
    except (error, UnicodeDecodeError):
        return None
    return topics if position <= len(metadata) else None
