from dataclasses import dataclass

from headrace.client import Message
from headrace.client.handlers import App, Outbox

app = App()


@dataclass
class Sale:
    cents: int


@app.subscribe("sales", group="totals", delivery="exactly-once")
async def convert(message: Message[Sale], out: Outbox) -> None:
    out.send("sales-in-euros", {"euros": message.value.cents / 100}, key=message.key)
