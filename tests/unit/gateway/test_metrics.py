"""What a gateway tells Prometheus."""

import pytest

from headrace.metrics.names import GATEWAY
from tests.support.asgi import Asker, conversation
from tests.support.metrics import parse


@pytest.mark.usefixtures("patient_probes")
def test_the_gateway_counts_its_requests_by_route_and_status(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await ask("GET", "/healthz")
        await ask("GET", "/no/such/path/12345")
        await ask("PURGE", "/healthz")
        reply = await ask("GET", "/metrics")
        assert reply.status == 200
        assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
        found = parse(reply.body.decode())
        assert found.kinds == {name: metric.kind.value for name, metric in GATEWAY.items()}
        assert found("headrace_gateway_requests_total", method="GET", route="/healthz", status="200") == 1
        assert found("headrace_gateway_requests_total", method="GET", route="unmatched", status="404") == 1
        assert found("headrace_gateway_requests_total", method="other", route="unmatched", status="405") == 1
        assert found("headrace_gateway_request_seconds_count", route="/healthz") == 1
        assert found("headrace_gateway_brokers") == 1
        assert found("headrace_gateway_requests_pending") == 1

    conversation(bootstrap, talk)


def test_a_gateway_without_metrics_has_no_such_path(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        assert (await ask("GET", "/metrics")).status == 404

    conversation(bootstrap, talk, metrics=False)
