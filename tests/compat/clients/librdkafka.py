"""What all clients built on librdkafka have in common."""

from ..model import Advertised, Codec, Pending, Sending

_FIND_COORDINATOR = 10


def require_codec(advertised: Advertised, sending: Sending) -> None:
    """Raise Pending where librdkafka would silently send uncompressed what should be compressed.

    It takes a broker without FindCoordinator for one from before LZ4, and zstd and the others have no such test.
    """
    if sending.codec is Codec.LZ4 and _FIND_COORDINATOR not in advertised:
        raise Pending("librdkafka compresses with lz4 only where the broker serves FindCoordinator")
