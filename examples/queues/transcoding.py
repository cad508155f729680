import time
from dataclasses import dataclass

from headrace.client import Producer, Queue


@dataclass
class Video:
    name: str
    seconds: float


with (
    Producer() as producer,
    Queue("videos", group="transcoders", value=Video, prefetch=1, renew_for=3600) as queue,
):
    print("waiting for videos", flush=True)
    for message in queue:
        time.sleep(message.value.seconds)  # the work: its lock is renewed meanwhile
        producer.deliver("transcoded", f"{message.value.name}, delivery {message.deliveries}")
