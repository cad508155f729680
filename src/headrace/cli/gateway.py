"""`headrace gateway`: HTTP beside the brokers."""

from typing import Annotated

import typer

from headrace.client.probe import Address, parse_bootstrap

from .console import examples, say, say_json
from .listening import exit_with, friendly_bind, stop_with_stdin
from .options import DEFAULT_BOOTSTRAP, Bootstrap, Json, address, bootstrap_list


def register(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "headrace gateway --bootstrap 127.0.0.1:9092 --http 127.0.0.1:8080", "curl http://127.0.0.1:8080/health"
        )
    )(gateway)


def gateway(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    http: Annotated[str, typer.Option("--http", metavar="HOST:PORT", help="Where to listen.")] = "127.0.0.1:8080",
    json: Json = False,
    with_stdin: Annotated[bool, typer.Option("--stop-with-stdin", hidden=True)] = False,
) -> None:
    """Serve HTTP for a cluster, in the foreground.

    GET /health answers 200 while the cluster does.
    """
    listen = address(http, "--http")
    brokers = parse_bootstrap(bootstrap_list(bootstrap))
    if with_stdin:
        stop_with_stdin()

    def ready(host: str, port: int) -> None:
        bound = Address(host, port)
        if json:
            say_json({"ready": True, "http": f"http://{bound}"})
        else:
            say(f"headrace ready http=http://{bound}")

    from headrace.gateway.app import run_gateway
    from headrace.gateway.schemas import mount_registry
    from headrace.gateway.settings import Settings
    from headrace.net.channel import Address as Broker
    from headrace.web.guard import Guard
    from headrace.web.server import Listen

    settings = Settings(bootstrap=tuple(Broker(*each) for each in brokers))
    guard = Guard(hosts=[listen.host])
    with friendly_bind(listen, "--http"):
        code = run_gateway(settings, Listen(host=listen.host, port=listen.port), ready, guard, [mount_registry])
    exit_with(code)
