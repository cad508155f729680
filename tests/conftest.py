"""Settings of all tests."""

import os

from hypothesis import HealthCheck, settings

from headrace.testing.broker import log_through_logging

# Speed is measured by `make bench`, not judged by tests. The same examples are tried each time, so that a change is
# judged by what it changed; HYPOTHESIS_PROFILE=explore looks for new ones (`make explore`), `few` is for `make check`.
SLOW_IS_FINE = [HealthCheck.too_slow]
settings.register_profile("headrace", deadline=None, derandomize=True, suppress_health_check=SLOW_IS_FINE)
settings.register_profile("few", deadline=None, derandomize=True, max_examples=10, suppress_health_check=SLOW_IS_FINE)
settings.register_profile("explore", deadline=None, derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "headrace"))

# Before any test: one that adds to structlog's settings and puts them back would leave its default behind, by which
# every broker of this process prints its lines to the standard output, into that of a command under test.
log_through_logging()
