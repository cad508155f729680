"""`python -m headrace.metrics` prints docs/metrics.md."""

import sys

from .docs import render_docs

sys.stdout.write(render_docs())
