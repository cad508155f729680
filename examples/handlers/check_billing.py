import asyncio

from billing import Payment, app

from headrace.client.handlers import TestClient


async def check() -> None:
    async with TestClient(app) as client:
        await client.send("payments", Payment(id=1, amount=10))
        assert client.messages("bills", dict[str, float])[0].value == {"payment": 1, "total": 12.0}

        await client.send("payments", Payment(id=2, amount=-10))
        await client.advance(60)  # 1 s, then 3 s later
        (letter,) = client.dead_letters("payments", "billing")
        assert letter.header("headrace.dlq.attempts") == "5"
        assert letter.header("headrace.dlq.reason") == "ValueError: payment 2 is negative"


asyncio.run(check())
print("billing is right")
