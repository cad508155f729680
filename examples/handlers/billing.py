from dataclasses import dataclass

from headrace.client.handlers import App, Outbox, Retry

app = App()


@dataclass
class Payment:
    id: int
    amount: float


@app.subscribe(
    "payments",
    group="billing",
    retry=Retry(in_place=3, backoff=0.1, delays=(1, 3)),
    dead_letter=True,
    concurrency=16,
)
async def bill(payment: Payment, out: Outbox) -> None:
    if payment.amount < 0:
        raise ValueError(f"payment {payment.id} is negative")
    out.send("bills", {"payment": payment.id, "total": payment.amount * 1.2}, key=str(payment.id))
