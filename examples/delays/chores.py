from headrace.client import Message
from headrace.client.handlers import App, Retry

app = App()


@app.subscribe("chores", group="cron", retry=Retry(in_place=3), dead_letter=True, publish="done")
async def do(message: Message[str]) -> str:
    return f"{message.value}, as of {message.header('headrace.schedule.time')}"
