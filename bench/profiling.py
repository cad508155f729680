"""Where the broker's time goes: a work's broker side once, under a profiler. The rates mean nothing here."""

import pstats
from dataclasses import replace

from .model import Work
from .setting import Setting

_TOP = 30


def profile(work: Work, setting: Setting) -> None:
    """Run a work's broker side under cProfile and print the functions that took most time themselves."""
    with setting.directory() as directory:
        path = directory / "stats"
        work.broker(replace(setting, profile=path, root=directory))
        print(f"\n{work.name}: {work.title}")
        stats = pstats.Stats(str(path))
        stats.sort_stats("tottime").print_stats(_TOP)
