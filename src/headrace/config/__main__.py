"""`python -m headrace.config` prints docs/configuration.md."""

import sys

from .docs import render_docs

sys.stdout.write(render_docs())
