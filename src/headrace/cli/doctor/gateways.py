"""What `headrace doctor` finds of gateways: asked at `/readyz`, as a load balancer asks them."""

import http.client
import json
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from headrace.client.waiting import in_background

from ..console import bad_input
from .machine import Finding, fail, ok

_PATH: Final = "/readyz"
_MOST_BYTES: Final = 64 * 1024


def checked_url(url: str) -> str:
    """A gateway's address that has been looked at."""
    parts = urlsplit(url)
    try:
        is_sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_sound = False
    if not is_sound:
        raise bad_input(f"--gateway '{url}' is not a URL such as http://127.0.0.1:8080")
    return url


def check_gateways(urls: Iterable[str], seconds: float) -> Iterator[Finding]:
    """Whether each is ready; all are asked at the same time."""
    asked = [(url, in_background(partial(ask_gateway, url, seconds))) for url in urls]
    deadline = time.monotonic() + seconds
    for url, future in asked:
        try:
            yield future.result(max(deadline - time.monotonic(), 0.0))
        except FutureTimeout:
            yield _silent(url, "timed out")


def ask_gateway(url: str, seconds: float) -> Finding:
    """Ask one."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(str(parts.hostname), parts.port, timeout=seconds)
    try:
        connection.request("GET", parts.path.rstrip("/") + _PATH)
        answer = connection.getresponse()
        body = answer.read(_MOST_BYTES)
    except (OSError, http.client.HTTPException) as error:
        reason = "timed out" if isinstance(error, TimeoutError) else getattr(error, "strerror", None) or str(error)
        return _silent(url, reason.lower())
    finally:
        connection.close()
    if answer.status == 200:
        return ok("gateways", f"{url} is ready{_brokers(body)}")
    return fail(
        "gateways",
        f"{url} is not ready: HTTP {answer.status}",
        "it reaches no broker: check its --bootstrap, its credentials, and the brokers",
    )


def _silent(url: str, reason: str) -> Finding:
    return fail("gateways", f"{url} does not answer: {reason}", "start it, or look at its log")


def _brokers(body: bytes) -> str:
    try:
        return f", {int(json.loads(body)['brokers'])} brokers"
    except (ValueError, KeyError, TypeError):
        return ""
