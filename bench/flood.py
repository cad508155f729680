"""Sends tiny produce requests to a topic, as many as are answered, until it is ended: `python -m bench.flood PORT`."""

import socket
import sys
from typing import Final

from .frames import MIB, batch_of, produce_frame, produce_reply_size
from .load import Load, Pump, ask, repeated
from .model import BenchError

TOPIC: Final = "flood"
_WINDOW: Final = 1000
_SECONDS: Final = 60.0
_MOST_BYTES: Final = 1024 * MIB


def main() -> None:
    port = int(sys.argv[1])
    frame = produce_frame(TOPIC, batch_of(1, 100))
    load = Load(
        block=repeated(frame),
        frame_size=len(frame),
        reply_size=produce_reply_size(TOPIC),
        window=_WINDOW,
        most_frames=_MOST_BYTES // len(frame),
    )
    with socket.create_connection(("127.0.0.1", port)) as sock:
        ask(sock, frame)
        print(f"ready 127.0.0.1:{port}", flush=True)
        try:
            Pump(sock, load).run(_SECONDS, lambda: 0.0)
        except (BenchError, OSError):
            return


if __name__ == "__main__":
    main()
