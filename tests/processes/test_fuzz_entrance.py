"""A small share of what `make chaos` sends to the entrance of a broker."""

import pytest
import uvloop

from tests.fuzz import tls_entrance

pytestmark = pytest.mark.slow


def test_nothing_that_comes_to_a_tls_listener_hurts_it() -> None:
    kinds = uvloop.run(tls_entrance.run(500, 1_000_000))
    assert kinds.total() == 500
    assert len(kinds) == 5
