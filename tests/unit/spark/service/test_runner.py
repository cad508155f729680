"""What a runner says, whatever its pipeline prints."""

from pathlib import Path
from queue import SimpleQueue

import pytest

from headrace.spark.service import runner
from headrace.spark.service.runner import Ended, Inbox, Runner, RunnerRequest, Said

PRINTS = r"""
import json, os, sys
json.loads(sys.stdin.buffer.readline())
print(json.dumps({"event": "failed", "error": "x" * 10_000}), flush=True)
print("{not json", flush=True)
print("[1]", flush=True)
os.write(1, b"\xff\x00\n" + b"y" * 3_000_000 + b"\n")
os.write(2, b"headrace: last words\n")
sys.exit(3)
"""


def test_events_come_whole_lines_are_cut_and_the_end_is_told_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "COMMAND", ("-c", PRINTS))
    inbox: Inbox = SimpleQueue()
    request = RunnerRequest(
        file="f",
        name="p",
        bootstrap="b",
        master="m",
        remote=None,
        conf={},
        checkpoint="c",
        runner_id="r",
        lease="l",
        client={},
        dead=(),
    )
    Runner(request, tmp_path, inbox).join()
    said: list[Said | Ended] = []
    while not inbox.empty():
        said.append(inbox.get())
    events = [one.event for one in said if isinstance(one, Said) and one.event is not None]
    assert [len(str(event["error"])) for event in events] == [10_000]
    lines = [one.line for one in said if isinstance(one, Said) and one.event is None]
    assert "{not json" in lines
    assert "[1]" in lines
    assert max(map(len, lines)) == runner.MOST_LINE
    assert said[-1] == Ended("p", "r", 3, "last words")
