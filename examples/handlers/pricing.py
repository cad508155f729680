from dataclasses import dataclass

from headrace.client.handlers import App

app = App()
PRICES = {"tea": 3.5, "coffee": 4.0}


@dataclass
class Question:
    item: str
    count: int = 1


@app.serve("pricing")
async def price(question: Question) -> dict[str, float]:
    return {"total": PRICES[question.item] * question.count}
