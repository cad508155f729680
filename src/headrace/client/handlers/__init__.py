"""Handlers: functions that are called for each message of a topic, with what everybody writes around them.

    app = App()

    @app.subscribe("orders", group="billing", retry=Retry(in_place=3, delays=(10, 60)), dead_letter=True)
    async def bill(order: Order) -> None: ...

`headrace worker run module:app` runs them; `TestClient` calls them in tests, without a broker.

    consumer -> lanes (a key is in one of them at a time) -> attempt -> outgoing records -> acknowledged -> committed
"""

from .app import App, Delivery, Subscription
from .attempt import HandlerFailed
from .outbox import Outbox
from .retry import Retry
from .running import Worker
from .testing import TestClient

__all__ = ["App", "Delivery", "HandlerFailed", "Outbox", "Retry", "Subscription", "TestClient", "Worker"]
