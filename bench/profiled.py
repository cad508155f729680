"""The `headrace` command under cProfile: `python -m bench.profiled STATS broker …`. Callbacks of the loop run on the
profiled thread; the threads that sync do not show.
"""

import cProfile
import sys
from runpy import run_module


def main() -> None:
    path, *arguments = sys.argv[1:]
    sys.argv[1:] = arguments
    profile = cProfile.Profile()
    try:
        profile.runcall(run_module, "headrace.cli", run_name="__main__", alter_sys=True)
    except SystemExit:
        pass
    finally:
        profile.dump_stats(path)


if __name__ == "__main__":
    main()
