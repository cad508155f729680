"""The schema registry on the gateway's port."""

from headrace.registry.mount import mount
from headrace.web.messages import Request
from headrace.web.routes import Mounted

from .app import Services


def mount_registry(services: Services) -> Mounted:
    """The registry, whose log the gateway reads and writes as its own user. Callers must be users of the brokers."""

    async def admit(request: Request) -> None:
        if services.settings.mechanism is not None:
            await services.clients.of(request).cluster.any()

    return mount(services.own, admit)
