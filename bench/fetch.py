"""Fetch of 1 MiB at a time from the page cache, beside a bare sendfile of as many bytes per request."""

from typing import Final

from .frames import MIB, Batch, batch_up_to, check_fetched, fetch_frame, fetch_reply_head
from .load import Load, Pump, Pumped, ask
from .model import CPU, Aim, BenchError, Figure, Of, Sample, Work
from .produce import RELAXED, TOPIC, fill
from .setting import Setting

_BATCHES_PER_FETCH: Final = 16
_FETCHES: Final = 256
_WINDOW: Final = 4
_MOST_FRAMES: Final = 1_000_000


def _batch() -> Batch:
    return batch_up_to(MIB // _BATCHES_PER_FETCH, 100)


def _load(batch: Batch) -> Load:
    size = len(batch.data) * _BATCHES_PER_FETCH
    step = batch.records * _BATCHES_PER_FETCH
    requests = [fetch_frame(TOPIC, n * step, size) for n in range(_FETCHES)]
    return Load(
        block=b"".join(requests),
        frame_size=len(requests[0]),
        reply_size=fetch_reply_head(TOPIC, size) + size,
        window=_WINDOW,
        most_frames=_MOST_FRAMES,
    )


def fetch_from_broker(setting: Setting) -> Sample:
    """One round of reading a log over and over."""
    batch = _batch()
    load = _load(batch)
    with setting.broker() as server:
        server.create_topic(TOPIC, RELAXED)
        fill(server, TOPIC, batch, _FETCHES * _BATCHES_PER_FETCH)
        with server.connect() as sock:
            first = ask(sock, load.block[: load.frame_size])
            check_fetched(first, TOPIC)
            if len(first) != load.reply_size:
                raise BenchError(f"a fetch gave {len(first)} bytes, {load.reply_size} were expected")
            return _sample(Pump(sock, load).run(setting.seconds, server.cpu_seconds), load)


def send_file(setting: Setting) -> Sample:
    """One round of the bare sendfile."""
    batch = _batch()
    load = _load(batch)
    size = len(batch.data) * _BATCHES_PER_FETCH
    with setting.directory() as directory:
        path = directory / "file"
        path.write_bytes(batch.data * (_BATCHES_PER_FETCH * _FETCHES))
        arguments = ["--path", str(path), "--request", str(load.frame_size)]
        arguments += ["--head", str(load.reply_size - size), "--size", str(size)]
        with setting.ceiling("send_file", directory, *arguments) as server, server.connect() as sock:
            return _sample(Pump(sock, load).run(setting.seconds, server.cpu_seconds), load)


def _sample(pumped: Pumped, load: Load) -> Sample:
    size = pumped.frames * load.reply_size
    return {"rate": size / pumped.seconds / 1e6, CPU: pumped.cpu_seconds / (size / 1e9)}


def works() -> list[Work]:
    return [
        Work(
            name="fetch",
            title="fetch, 1 MB per request, from the page cache",
            against="bare sendfile",
            figures=(Figure(key="rate", label="", unit="MB/s", aim=Aim(of=Of.RATIO, bound=0.6, at_least=True)),),
            broker=fetch_from_broker,
            ceiling=send_file,
            cpu_unit="s/GB",
        )
    ]
