"""What is made once for all tests of storage."""

import pytest

from headrace.kernels import build, native


@pytest.fixture(scope="session")
def walk() -> native.Function:
    """The compiled `kernels.heads.walk`."""
    return native.run(build.compiled(native.HEADS), releases_gil=True)
