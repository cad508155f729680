"""Produce over a raw socket with a window of requests, beside a bare copy of the same bytes to a file.

Each is measured twice: with the topic's default, where an ack waits for the disk, beside a copy that syncs in groups
the same way; and with `flush.messages` at its largest, beside a copy that never syncs.
"""

from dataclasses import dataclass
from typing import Final

from .frames import MIB, NEVER, Batch, batch_of, batch_up_to, produce_frame, produce_reply_size, produced_offset
from .load import Load, Pump, Pumped, ask, repeated
from .model import CPU, Aim, BenchError, Figure, Of, Sample, Work
from .setting import Server, Setting

TOPIC: Final = "bench"
RELAXED: Final = {"flush.messages": NEVER}
_BYTES_PER_ROUND: Final = 1536 * MIB
"""Written in one round at most, so that the kernel does not start to write back what is deleted right after."""
_FRAMES_PER_ROUND: Final = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a produce request looks like and how many of them may be under way."""

    batch: Batch
    window: int
    durable: bool

    def load(self) -> Load:
        frame = produce_frame(TOPIC, self.batch)
        return Load(
            block=repeated(frame),
            frame_size=len(frame),
            reply_size=produce_reply_size(TOPIC),
            window=self.window,
            most_frames=min(_BYTES_PER_ROUND // len(frame), _FRAMES_PER_ROUND),
        )

    def settings(self) -> dict[str, str]:
        return {} if self.durable else RELAXED


def produce_to_broker(setting: Setting, shape: Shape) -> tuple[Pumped, Load]:
    """One round against a fresh broker; every acknowledged batch is in the log, or the round does not count."""
    load = shape.load()
    with setting.broker() as server:
        server.create_topic(TOPIC, shape.settings())
        with server.connect() as sock:
            first = ask(sock, load.block[: load.frame_size])
            if produced_offset(first, TOPIC) != 0 or len(first) != load.reply_size:
                raise BenchError("the first reply is not what a reply should be")
            pumped = Pump(sock, load).run(setting.seconds, server.cpu_seconds)
    _check_last(pumped, shape)
    return pumped, load


def _check_last(pumped: Pumped, shape: Shape) -> None:
    expected = pumped.total_frames * shape.batch.records
    found = produced_offset(pumped.last, TOPIC)
    if found != expected:
        raise BenchError(f"the last batch stands at offset {found}, it should be {expected}")


def fill(server: Server, topic: str, batch: Batch, count: int) -> None:
    """Put that many batches into a topic, unmeasured."""
    frame = produce_frame(topic, batch)
    load = Load(
        block=repeated(frame),
        frame_size=len(frame),
        reply_size=produce_reply_size(topic),
        window=64,
        most_frames=count,
    )
    with server.connect() as sock:
        pumped = Pump(sock, load).run(60.0, server.cpu_seconds)
    if pumped.total_frames != count or produced_offset(pumped.last, topic) != (count - 1) * batch.records:
        raise BenchError(f"{pumped.total_frames} of {count} batches could be put into the log")


def copy_to_file(setting: Setting, shape: Shape) -> tuple[Pumped, Load]:
    """One round against the bare copy."""
    load = shape.load()
    with setting.directory() as directory:
        arguments = [
            "--path",
            str(directory / "file"),
            "--frame",
            str(load.frame_size),
            "--reply",
            str(load.reply_size),
        ]
        arguments += ["--sync"] if shape.durable else []
        with setting.ceiling("copy_to_file", directory, *arguments) as server, server.connect() as sock:
            return Pump(sock, load).run(setting.seconds, server.cpu_seconds), load


def echo(setting: Setting, shape: Shape) -> tuple[Pumped, Load]:
    """One round against the bare echo."""
    load = shape.load()
    with (
        setting.directory() as directory,
        setting.ceiling("echo", directory, "--reply", str(load.reply_size)) as server,
        server.connect() as sock,
    ):
        return Pump(sock, load).run(setting.seconds, server.cpu_seconds), load


def throughput(measured: tuple[Pumped, Load]) -> Sample:
    pumped, load = measured
    size = pumped.frames * load.frame_size
    return {"rate": size / pumped.seconds / 1e6, CPU: pumped.cpu_seconds / (size / 1e9)}


def _request_rate(measured: tuple[Pumped, Load]) -> Sample:
    pumped, _ = measured
    return {"rate": pumped.frames / pumped.seconds, CPU: pumped.cpu_seconds / pumped.frames * 1e6}


LARGE: Final = MIB - 128
MEDIUM: Final = 16 * 1024 - 128


def _ingest(name: str, words: str, shape: Shape, aim: float) -> Work:
    synced = "fsync" if shape.durable else "no fsync"
    return Work(
        name=name,
        title=f"produce, {words} requests, {synced}",
        against="bare TCP to file" + (", fdatasync in groups" if shape.durable else ""),
        figures=(Figure(key="rate", label="", unit="MB/s", aim=Aim(of=Of.RATIO, bound=aim, at_least=True)),),
        broker=lambda setting: throughput(produce_to_broker(setting, shape)),
        ceiling=lambda setting: throughput(copy_to_file(setting, shape)),
        cpu_unit="s/GB",
    )


def _tiny(name: str, shape: Shape) -> Work:
    synced = "fsync" if shape.durable else "no fsync"
    return Work(
        name=name,
        title=f"produce, requests of one 100 B record, {synced}",
        against="bare uvloop echo",
        figures=(Figure(key="rate", label="", unit="req/s", aim=Aim(of=Of.VALUE, bound=30_000, at_least=True)),),
        broker=lambda setting: _request_rate(produce_to_broker(setting, shape)),
        ceiling=lambda setting: _request_rate(echo(setting, shape)),
        cpu_unit="µs/req",
    )


def works() -> list[Work]:
    """Produce in three sizes, with and without waiting for the disk."""
    large, medium, small = batch_up_to(LARGE, 100), batch_up_to(MEDIUM, 100), batch_of(1, 100)
    return [
        _ingest("produce-1m", "1 MB", Shape(batch=large, window=8, durable=False), 0.5),
        _ingest("produce-1m-fsync", "1 MB", Shape(batch=large, window=8, durable=True), 0.5),
        _ingest("produce-16k", "16 KB", Shape(batch=medium, window=128, durable=False), 0.25),
        _ingest("produce-16k-fsync", "16 KB", Shape(batch=medium, window=128, durable=True), 0.25),
        _tiny("tiny", Shape(batch=small, window=1000, durable=False)),
        _tiny("tiny-fsync", Shape(batch=small, window=1000, durable=True)),
    ]
