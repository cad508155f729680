"""How long clients were held back by their quotas, by user and client id."""

from typing import Final, NamedTuple

MOST_CLIENTS: Final = 100
"""Users and client ids that are counted by name; the others together."""
OTHERS: Final = ("other", "other")


class ClientThrottling(NamedTuple):
    """Throttled requests of one client, and for how long."""

    requests: int
    seconds: float


_NONE: Final = ClientThrottling(0, 0.0)


class ThrottleTimes:
    """Requests that were throttled, and for how long, since the start."""

    def __init__(self) -> None:
        self.clients: dict[tuple[str, str], ClientThrottling] = {}
        """By user and client id."""

    def add(self, user: str, client_id: str, seconds: float) -> None:
        """A request was throttled."""
        client = (user, client_id)
        if client not in self.clients and len(self.clients) >= MOST_CLIENTS:
            client = OTHERS
        before = self.clients.get(client, _NONE)
        self.clients[client] = ClientThrottling(before.requests + 1, before.seconds + seconds)
