from collections.abc import Iterator

import pytest

from tests.support.handlers import Harness


@pytest.fixture
def broker() -> Iterator[Harness]:
    harness = Harness()
    yield harness
    harness.close()
