"""A controller with a million partitions: what it loads, what one broker's failure costs it, what it tells the others.

All of the controller but the store's network: records are those that ZooKeeper holds, read and written by the code that
reads and writes them there. In a process of its own, so that its memory can be told from ours.
"""

import json
import os
import subprocess
import sys
from typing import Final

from . import machine
from .model import Aim, BenchError, Figure, Of, Sample, Work
from .setting import Setting

PARTITIONS: Final = int(os.environ.get("BENCH_IMAGE_PARTITIONS", "1000000"))
_SECONDS: Final = 900.0


def rule(setting: Setting) -> Sample:
    """One controller's life, in another process."""
    command = [sys.executable, "-m", "bench.rule", str(PARTITIONS)]
    with setting.directory() as directory, setting.spawned(command, directory, core=machine.CLIENT_CORE) as process:
        try:
            answer, _ = process.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"not done in {_SECONDS:.0f} s") from error
        if process.returncode:
            raise BenchError(f"the controller failed: {(directory / 'stderr').read_text()[-2000:]}")
    sample: Sample = json.loads(answer)
    return sample


def works() -> list[Work]:
    return [
        Work(
            name="image",
            title=f"a controller with {PARTITIONS:,} partitions",
            against="",
            figures=(
                Figure(key="load", label="records read into the image", unit="s CPU"),
                Figure(key="memory", label="memory of a partition", unit="B"),
                Figure(key="rss", label="memory of the process", unit="MB"),
                Figure(
                    key="decide",
                    label="failure of one of ten brokers decided and encoded",
                    unit="s CPU",
                    aim=Aim(of=Of.VALUE, bound=10, at_least=False),
                ),
                Figure(key="commits", label="commits of that", unit=""),
                Figure(key="written", label="written to the store by that", unit="MB"),
                Figure(key="stall", label="longest time others waited", unit="s"),
                Figure(key="tell", label="a broker takes up the changes", unit="s CPU"),
                Figure(key="snapshot", label="a broker takes up everything", unit="s CPU"),
            ),
            broker=rule,
            rounds=1,
        )
    ]
