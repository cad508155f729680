"""Judges schemas in this process, for a gateway that asks over a pipe: `python -m headrace.registry.worker SECONDS`.

Each question and each answer is a length of four bytes and MessagePack. A question may take so much of the processor
and the process so much memory; a process that does not heed this can be killed, as nothing else is in it.
"""

import os
import resource
import signal
import struct
import sys
import traceback
from types import FrameType
from typing import Any, BinaryIO, Final, NoReturn

import msgspec
from msgspec import Struct

from headrace.net.turns import ask_for_turns

from .errors import InvalidSchemaError
from .parsing import Comparison, SchemaParser, Source

MOST_MEMORY: Final = 768 << 20
HEAD: Final = struct.Struct(">I")
_NICENESS: Final = 5


class Prepare(Struct, tag=True, frozen=True):
    source: Source
    normalize: bool
    strict: bool


class Mean(Struct, tag=True, frozen=True):
    source: Source


class Show(Struct, tag=True, frozen=True):
    source: Source
    form: str


class Compare(Struct, tag=True, frozen=True):
    comparison: Comparison


Question = Prepare | Mean | Show | Compare


class Verdict(Struct, frozen=True):
    """An answer. `refusal` says why a schema is none, if it is none; `defect` is a traceback of ours."""

    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    refusal: str | None = None
    defect: str | None = None


class _TooLongError(BaseException):
    """The question has taken its time."""


def main() -> None:
    """Answers until nobody asks any more. A question may take so many seconds of the processor."""
    seconds = float(sys.argv[1])
    os.nice(_NICENESS)
    ask_for_turns(0)
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
    signal.signal(signal.SIGVTALRM, _give_up)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    source, target = sys.stdin.buffer, sys.stdout.buffer
    parser = SchemaParser()
    read = msgspec.msgpack.Decoder(Question).decode
    while (asked := _message(source)) is not None:
        answer = msgspec.msgpack.encode(_judged(parser, read(asked), seconds))
        target.write(HEAD.pack(len(answer)) + answer)
        target.flush()


def _message(source: BinaryIO) -> bytes | None:
    head = source.read(HEAD.size)
    return source.read(HEAD.unpack(head)[0]) if len(head) == HEAD.size else None


def _judged(parser: SchemaParser, question: Question, seconds: float) -> Verdict:
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        try:
            value = _answer(parser, question)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        return Verdict(msgspec.Raw(msgspec.msgpack.encode(value)))
    except InvalidSchemaError as error:
        return Verdict(refusal=str(error))
    except (_TooLongError, MemoryError):
        parser.forget()
        return Verdict(refusal="too complex: it would take too long to be understood or compared")
    except Exception:
        return Verdict(defect=traceback.format_exc())


def _answer(parser: SchemaParser, question: Question) -> Any:
    match question:
        case Prepare(source, normalize, strict):
            return parser.prepare(source, normalize=normalize, strict=strict)
        case Mean(source):
            return parser.meaning(source)
        case Show(source, form):
            return parser.shown(source, form)
        case Compare(comparison):
            return parser.objections(comparison)


def _give_up(_number: int, _frame: FrameType | None) -> NoReturn:
    raise _TooLongError


if __name__ == "__main__":
    main()
