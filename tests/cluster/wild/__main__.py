"""The command: see the package."""

import os
import sys

from .command import main

if os.environ.get("PYTHONHASHSEED") != "0":  # else the same seed gives another run: sets of strings differ
    os.execve(
        sys.executable,
        [sys.executable, "-m", "tests.cluster.wild", *sys.argv[1:]],
        {**os.environ, "PYTHONHASHSEED": "0"},
    )
sys.exit(main())
