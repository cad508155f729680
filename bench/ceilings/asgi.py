"""The least that an ASGI application can do on the gateway's server: read the body, answer the same to everybody."""

import argparse
from typing import Any

from headrace.web.server import Listen, serve


def bare(size: int) -> Any:
    """An application whose answers have so many bytes."""
    body = b"x" * size
    headers = [(b"content-type", b"application/json"), (b"content-length", str(size).encode())]

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return application


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reply", type=int, required=True, help="bytes of an answer's body")
    size = parser.parse_args().reply
    serve(bare(size), Listen(host="127.0.0.1", port=0), lambda host, port: print(f"ready {host}:{port}", flush=True))


if __name__ == "__main__":
    main()
