"""What metrics cost: Produce as in `produce`, scraped every two seconds, beside a broker without metrics.

And what they show meanwhile: how late the event loop is under this load, from the broker's own histogram.
"""

import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from headrace.net.ports import HeldPort

from .frames import batch_of, batch_up_to
from .load import Pump
from .model import CPU, Aim, Figure, Of, Sample, Work
from .produce import TOPIC, Shape
from .setting import Setting

SCRAPE_SECONDS: Final = 2.0
_LOOP_DELAY: Final = "headrace_loop_delay_seconds"
_PERCENTS: Final = (50, 99)
_OFF: Final = {"headrace.metrics.listener": "off", "headrace.metrics.requests.enable": "false"}


def _produce(setting: Setting, shape: Shape, settings: Mapping[str, str], url: str = "") -> Sample:
    load = shape.load()
    with setting.broker(settings) as server:
        server.create_topic(TOPIC, shape.settings())
        with server.connect() as sock, _scraping(url) if url else nullcontext():
            pumped = Pump(sock, load).run(setting.seconds, server.cpu_seconds)
        delays = {f"loop-p{percent}": _loop_delay_ms(url, percent / 100) for percent in _PERCENTS if url}
    return {"rate": pumped.frames / pumped.seconds, CPU: pumped.cpu_seconds / pumped.frames * 1e6} | delays


def _with_metrics(setting: Setting, shape: Shape) -> Sample:
    with HeldPort() as port:
        address = f"127.0.0.1:{port.number}"
        return _produce(setting, shape, {"headrace.metrics.listener": address}, f"http://{address}/metrics")


def _scrape(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text: bytes = answer.read()
    return text.decode()


def _loop_delay_ms(url: str, share: float) -> float:
    """The upper bound of the bucket that this share of the event loop's delays is within."""
    (delays,) = [each for each in text_string_to_metric_families(_scrape(url)) if each.name == _LOOP_DELAY]
    buckets = [(float(each.labels["le"]), each.value) for each in delays.samples if each.name.endswith("_bucket")]
    buckets.sort()
    return next(bound for bound, count in buckets if count >= share * buckets[-1][1]) * 1000


@contextmanager
def _scraping(url: str) -> Iterator[None]:
    """Scrape now, which loads what is needed for it, and then from time to time."""
    _scrape(url)
    is_over = threading.Event()

    def scrape() -> None:
        while not is_over.wait(SCRAPE_SECONDS):
            _scrape(url)

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _work(name: str, words: str, shape: Shape) -> Work:
    return Work(
        name=name,
        title=f"produce, {words} requests, no fsync, with metrics that are scraped every 2 s",
        against="the same without metrics",
        figures=(
            Figure(key="rate", label="", unit="req/s", aim=Aim(of=Of.RATIO, bound=0.98, at_least=True)),
            *(
                Figure(key=f"loop-p{percent}", label=f"the event loop is late by, p{percent}, at most", unit="ms")
                for percent in _PERCENTS
            ),
        ),
        broker=lambda setting: _with_metrics(setting, shape),
        ceiling=lambda setting: _produce(setting, shape, _OFF),
        cpu_unit="µs/req",
    )


def works() -> list[Work]:
    """Many requests in a turn, and few."""
    medium, small = batch_up_to(16 * 1024 - 128, 100), batch_of(1, 100)
    return [
        _work("metrics-16k", "16 KB", Shape(batch=medium, window=128, durable=False)),
        _work("metrics-tiny", "one 100 B record's", Shape(batch=small, window=1000, durable=False)),
    ]
