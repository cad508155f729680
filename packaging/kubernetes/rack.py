"""Writes a broker's settings with the zone of its node as `broker.rack`: rack.py SETTINGS RESULT.

Runs before the broker, in its pod. A node without a zone is a failure domain of its own: its name is the rack.
"""

import json
import os
import ssl
import sys
import urllib.request
from pathlib import Path

API = os.environ.get("KUBERNETES_API", "https://kubernetes.default.svc")
ACCOUNT = Path(os.environ.get("SERVICE_ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount"))
ZONE = "topology.kubernetes.io/zone"


def zone_of(node: str) -> str:
    """The zone that a node is labelled with, or else its name."""
    request = urllib.request.Request(f"{API}/api/v1/nodes/{node}")
    request.add_header("Authorization", f"Bearer {(ACCOUNT / 'token').read_text().strip()}")
    authority = ACCOUNT / "ca.crt"
    context = ssl.create_default_context(cafile=authority) if API.startswith("https") else None
    with urllib.request.urlopen(request, timeout=10, context=context) as answer:
        labels = json.load(answer)["metadata"].get("labels", {})
    return str(labels.get(ZONE, node))


def main(settings: str, result: str) -> None:
    """The settings, and after them the rack."""
    node = os.environ["NODE_NAME"]
    try:
        rack = zone_of(node)
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"the zone of node {node} cannot be read from {API}: {error}; may the service account get nodes?")
    Path(result).write_text(f"{Path(settings).read_text().rstrip()}\nbroker.rack={rack}\n")
    print(f"broker.rack={rack}")  # noqa: T201 - the log of the init container


if __name__ == "__main__":
    main(*sys.argv[1:])
