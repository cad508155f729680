"""The `headrace` command under cProfile, from its ready line on: `python -m bench.profiled STATS broker …`.

Callbacks of the loop run on the profiled thread; the threads that sync do not show.
"""

import cProfile
import sys
from collections.abc import Callable

from headrace.cli.main import main as headrace
from headrace.config import BrokerConfig
from headrace.server import broker


def main() -> None:
    path, *arguments = sys.argv[1:]
    sys.argv[1:] = arguments
    profile = cProfile.Profile()
    run_broker = broker.run_broker

    def run_profiled(
        config: BrokerConfig,
        on_ready: Callable[[str], None],
        on_stop: Callable[[], None] = lambda: None,
        reread: Callable[[], BrokerConfig] | None = None,
    ) -> int:
        def ready(bootstrap: str) -> None:
            on_ready(bootstrap)
            profile.enable()

        return run_broker(config, ready, on_stop, reread)

    broker.run_broker = run_profiled
    try:
        headrace()
    finally:
        profile.disable()
        profile.dump_stats(path)


if __name__ == "__main__":
    main()
