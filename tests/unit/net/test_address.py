"""Whom an address is counted for."""

import pytest

from headrace.net.address import owner_of


@pytest.mark.parametrize(
    ("address", "owner"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.1"),
        ("::1", "::1"),
        ("2001:db8:0:1:2:3:4:5", "2001:db8:0:1::/64"),
        ("2001:db8:0:1::", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("a unix socket:1", "a unix socket:1"),
    ],
)
def test_an_address_of_ipv6_is_counted_for_its_64(address: str, owner: str) -> None:
    assert owner_of(address) == owner
