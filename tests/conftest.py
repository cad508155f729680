"""Settings of all tests."""

from hypothesis import settings

settings.register_profile("headrace", deadline=None)  # speed is measured by `make bench`, not judged by tests
settings.load_profile("headrace")
