"""How long clients were held back by their quotas, by user and client id."""

from typing import Final, NamedTuple

MOST_CLIENTS: Final = 100
"""Users and client ids that are counted by name; the others together."""
OTHERS: Final = ("other", "other")


class Throttled(NamedTuple):
    """What became of one client's requests."""

    requests: int
    seconds: float


_NONE: Final = Throttled(0, 0.0)


class ThrottleTimes:
    """Requests that were throttled, and for how long, since the start."""

    def __init__(self) -> None:
        self.clients: dict[tuple[str, str], Throttled] = {}
        """By user and client id."""

    def add(self, user: str, client_id: str, seconds: float) -> None:
        """A request was throttled."""
        client = (user, client_id)
        if client not in self.clients and len(self.clients) >= MOST_CLIENTS:
            client = OTHERS
        before = self.clients.get(client, _NONE)
        self.clients[client] = Throttled(before.requests + 1, before.seconds + seconds)
