"""Dockerfile, Compose, systemd units, Kubernetes manifests: sound by their own rules, and they start what there is."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml

from headrace.cli.main import app
from headrace.config import BrokerConfig
from tests.support.packaging import (
    COMPOSE,
    KUBERNETES,
    PACKAGING,
    ROOT,
    UNITS,
    Started,
    Unit,
    compose,
    dockerfile,
    manifests,
    pod_templates,
    settings_file,
    started,
)

VARIABLES = {
    "POD_INDEX": "2",
    "POD_NAME": "headrace-broker-2",
    "POD_NAMESPACE": "headrace",
    "POD_IP": "10.1.2.3",
    **settings_file(KUBERNETES / "cluster.env"),
}
OLDEST_KUBERNETES, NEWEST_KUBERNETES = "1.28", "1.34"
KEYS_OF_SERVICES = {
    *("image", "build", "command", "environment", "ports", "volumes", "depends_on", "healthcheck", "restart"),
    *("read_only", "tmpfs", "cap_drop", "security_opt", "ulimits", "stop_grace_period"),
}


# Commands and settings


@pytest.mark.parametrize("command", list(started(VARIABLES)), ids=lambda each: each.where)
def test_every_command_that_is_started_is_one_of_ours(command: Started) -> None:
    group: Any = typer.main.get_command(app)
    name, *words = command.words
    group.commands[name].make_context(name, words)  # a usage error names the option or value


@pytest.mark.parametrize(
    "path",
    [PACKAGING / "compose" / "broker.properties", KUBERNETES / "broker.properties"]
    + [PACKAGING / "systemd" / name for name in ("broker.properties", "node.properties")],
    ids=lambda path: f"{path.parent.name}-{path.name}",
)
def test_settings_of_brokers_are_known_and_lose_nothing_with_one_broker(path: Path) -> None:
    config = BrokerConfig.parse(settings_file(path))
    assert (config["default.replication.factor"], config["min.insync.replicas"]) == (3, 2)
    assert config["offsets.topic.replication.factor"] == config["transaction.state.log.replication.factor"] == 3
    assert not config["auto.create.topics.enable"]


# Docker


def test_the_image_is_made_in_two_stages_and_runs_without_root() -> None:
    instructions = dockerfile()
    stages = [argument for instruction, argument in instructions if instruction == "FROM"]
    assert len(stages) == 2
    assert stages[0].endswith("AS build")
    last = instructions[[at for at, (each, _) in enumerate(instructions) if each == "FROM"][-1] :]
    by_name: dict[str, list[str]] = {}
    for instruction, argument in last:
        by_name.setdefault(instruction, []).append(argument)
    assert by_name["USER"] == ["10001:10001"]  # by number: Kubernetes must see that it is not root
    after_user = [each for each, _ in last[last.index(("USER", "10001:10001")) :]]
    assert not {"RUN", "COPY", "ADD"} & set(after_user)
    assert all("--from=build" in each for each in by_name["COPY"])
    for exec_form in ("ENTRYPOINT", "CMD"):
        (words,) = by_name[exec_form]
        assert all(isinstance(word, str) for word in json.loads(words))
    assert json.loads(by_name["HEALTHCHECK"][0].partition("CMD ")[2])[0] == "python"
    assert by_name["VOLUME"] == ["/var/lib/headrace"]


def test_the_image_is_made_only_of_what_is_there_and_let_through() -> None:
    allowed = (PACKAGING / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
    copied = [argument.split()[:-1] for each, argument in dockerfile() if each == "COPY" and "--from" not in argument]
    for source in (word for words in copied for word in words):
        assert (ROOT / source).exists()
        assert f"!{source.removeprefix('./')}" in allowed


def test_the_image_has_compiled_checks_where_brokers_look_for_them() -> None:
    text = " ".join(argument for _, argument in dockerfile())
    assert "headrace.kernels.build /opt/headrace/kernels" in text
    assert "HEADRACE_KERNELS=/opt/headrace/kernels" in text


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_image_builds() -> None:
    for tool in ("docker", "podman", "buildah"):
        if shutil.which(tool) and subprocess.run([tool, "info"], capture_output=True, check=False).returncode == 0:
            break
    else:
        pytest.skip("no docker, podman or buildah that works here")
    command = [tool, "build", "-f", "packaging/docker/Dockerfile", "-t", "headrace:test", "."]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr[-2000:]


# Compose


def test_compose_is_written_by_the_rules_of_its_specification() -> None:
    file = compose()
    assert {key for key in file if not key.startswith("x-")} == {"name", "services", "volumes"}
    for name, service in file["services"].items():
        assert re.fullmatch(r"[a-zA-Z0-9._-]+", name)
        assert set(service) <= KEYS_OF_SERVICES, name
        assert all(isinstance(value, str) for value in service.get("environment", {}).values()), name
        assert all(isinstance(word, str) for word in service.get("command", [])), name
        for port in service.get("ports", []):
            assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port), f"{name} is reachable from other machines: {port}"
    published = [port for service in file["services"].values() for port in service.get("ports", [])]
    assert len({port.split(":")[1] for port in published}) == len(published)


def test_compose_mounts_what_there_is_and_waits_for_services_that_can_be_healthy() -> None:
    file = compose()
    mounted = set()
    for name, service in file["services"].items():
        for source, target, *_ in (volume.split(":") for volume in service.get("volumes", [])):
            assert target.startswith("/")
            if not source.startswith("."):
                mounted.add(source)
                continue
            path = (COMPOSE.parent / source).resolve()
            assert path.is_file(), f"{name}: {source}"
        needed = service.get("depends_on", {})
        for other in needed:
            assert other in file["services"]
            if isinstance(needed, dict) and needed[other]["condition"] == "service_healthy":
                is_ours = file["services"][other]["image"].startswith("headrace")  # whose image has a health check
                assert is_ours or "healthcheck" in file["services"][other]
    assert mounted == set(file["volumes"])


def test_compose_runs_three_of_each_without_rights_and_watches_all_brokers() -> None:
    services = compose()["services"]
    brokers = {name: each for name, each in services.items() if each.get("command", [""])[0] == "broker"}
    assert sorted(brokers) == ["broker-1", "broker-2", "broker-3"]
    assert sum(each["image"].startswith("zookeeper:") for each in services.values()) == 3
    for each in (*brokers.values(), services["gateway"]):
        assert each["read_only"] is True
        assert each["cap_drop"] == ["ALL"]
        assert each["security_opt"] == ["no-new-privileges:true"]
    scraped = yaml.safe_load((COMPOSE.parent / "prometheus.yml").read_text())["scrape_configs"][0]["static_configs"][0]
    assert {target.partition(":")[0] for target in scraped["targets"]} >= set(brokers)
    for path in (COMPOSE.parent / "grafana").glob("*.yaml"):
        assert yaml.safe_load(path.read_text())["apiVersion"] == 1


# systemd


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_tells_when_it_is_ready_is_watched_and_has_few_rights(path: Path) -> None:
    service = Unit(path)["Service"]
    assert (service["Type"], service["NotifyAccess"]) == ("notify", "main")
    assert int(service["WatchdogSec"]) > 0
    assert int(service["LimitNOFILE"]) >= 65536
    assert "PYTHONFAULTHANDLER" in Unit(path).environment()
    assert (service["User"], service["CapabilityBoundingSet"], service["ProtectSystem"]) == ("headrace", "", "strict")
    assert service["RestartPreventExitStatus"] == "2"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    for path in UNITS:
        (tmp_path / path.name).write_text(path.read_text().replace("/opt/headrace/bin/headrace", sys.executable))
    units = [str(tmp_path / path.name) for path in UNITS]
    verified = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    for unit in units:
        judged = subprocess.run(
            ["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", unit],
            capture_output=True,
            text=True,
            check=False,
        )
        assert judged.returncode == 0, judged.stdout[-500:] + judged.stderr


# Kubernetes


@pytest.mark.parametrize("version", [OLDEST_KUBERNETES, NEWEST_KUBERNETES])
@pytest.mark.parametrize("manifest", manifests(), ids=lambda each: f"{each['kind']}-{each['metadata']['name']}")
def test_a_manifest_is_what_kubernetes_takes(manifest: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)


def test_the_kustomization_names_files_that_are_there() -> None:
    file = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    named = [*file["resources"]]
    for generator in file["configMapGenerator"]:
        named += [*generator.get("envs", []), *generator.get("files", [])]
    assert [name for name in named if not (KUBERNETES / name).is_file()] == []
    left_out = {path.name for path in KUBERNETES.glob("*.yaml")} - {*named, "kustomization.yaml"}
    assert left_out == {"network-policy.yaml"}


def test_pods_refer_only_to_what_there_is() -> None:
    file = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    maps = {generator["name"] for generator in file["configMapGenerator"]} | {"kube-root-ca.crt"}
    workloads = [each["spec"] for each in manifests() if each["kind"] in ("StatefulSet", "Deployment")]
    for workload in workloads:
        pod = workload["template"]["spec"]
        claims = {claim["metadata"]["name"] for claim in workload.get("volumeClaimTemplates", [])}
        volumes = {volume["name"] for volume in pod["volumes"]} | claims
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            given = {variable["name"] for variable in container.get("env", [])}
            words = " ".join([*container.get("args", []), *container.get("command", [])])
            assert set(re.findall(r"\$\((\w+)\)", words)) <= given
            ports = {port["name"] for port in container.get("ports", [])}
            probes = [value for key, value in container.items() if key.endswith("Probe")]
            assert {probe["httpGet"]["port"] for probe in probes} <= ports
        named = re.findall(r"'configMap(?:KeyRef)?': \{'name': '([^']+)'", str(pod))
        assert set(named) <= maps


def test_pods_have_few_rights_and_brokers_never_share_a_machine() -> None:
    for pod in pod_templates().values():
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"]
    (apart,) = pod_templates()["headrace-broker"]["affinity"]["podAntiAffinity"].values()
    assert [rule["topologyKey"] for rule in apart] == ["kubernetes.io/hostname"]


def test_selectors_select_the_pods_they_are_for() -> None:
    labels = {
        each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"]
        for each in manifests()
        if each["kind"] in ("StatefulSet", "Deployment")
    }
    chosen = {}
    for each in manifests():
        selector = each.get("spec", {}).get("selector", each.get("spec", {}).get("podSelector"))
        if selector:
            wanted = selector.get("matchLabels", selector).items()
            name = f"{each['kind']} {each['metadata']['name']}"
            chosen[name] = [workload for workload, own in labels.items() if wanted <= own.items()]
    assert chosen == {
        "Service headrace-brokers": ["headrace-broker"],
        "Service headrace": ["headrace-broker"],
        "PodDisruptionBudget headrace-brokers": ["headrace-broker"],
        "StatefulSet headrace-broker": ["headrace-broker"],
        "Service headrace-gateway": ["headrace-gateway"],
        "PodDisruptionBudget headrace-gateway": ["headrace-gateway"],
        "Deployment headrace-gateway": ["headrace-gateway"],
        "NetworkPolicy headrace-brokers": ["headrace-broker"],
    }


@contextmanager
def api_server(nodes: dict[str, dict[str, str]]) -> Iterator[str]:
    """Kubernetes' API as far as `rack.py` needs it: the labels of nodes, for those who have the token."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            node = nodes.get(self.path.removeprefix("/api/v1/nodes/"))
            may = self.headers["Authorization"] == "Bearer secret"
            self.send_response(200 if node is not None and may else 403)
            self.end_headers()
            self.wfile.write(json.dumps({"metadata": {"labels": node}}).encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def write_rack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: str, node: str) -> BrokerConfig:
    (tmp_path / "token").write_text("secret\n")
    for name, value in {"KUBERNETES_API": api, "SERVICE_ACCOUNT": str(tmp_path), "NODE_NAME": node}.items():
        monkeypatch.setenv(name, value)
    spec = importlib.util.spec_from_file_location("rack", KUBERNETES / "rack.py")
    assert spec is not None
    assert spec.loader is not None
    rack = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rack)
    rack.main(str(KUBERNETES / "broker.properties"), str(tmp_path / "result"))
    return BrokerConfig.from_file(tmp_path / "result")


def test_the_rack_is_the_zone_of_the_node_or_else_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with api_server({"n1": {"topology.kubernetes.io/zone": "eu-1a"}, "n2": {}}) as api:
        config = write_rack(tmp_path, monkeypatch, api, "n1")
        assert (config["broker.rack"], config["min.insync.replicas"]) == ("eu-1a", 2)
        assert write_rack(tmp_path, monkeypatch, api, "n2")["broker.rack"] == "n2"
        with pytest.raises(SystemExit, match=r"zone of node n3 cannot be read .* may the service account get nodes"):
            write_rack(tmp_path, monkeypatch, api, "n3")
