"""What `packaging/` starts: commands of systemd units, of Compose and of Kubernetes, as a shell would see them."""

import configparser
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGING: Final = ROOT / "packaging"
UNITS: Final = sorted((PACKAGING / "systemd").glob("*.service"))
COMPOSE: Final = PACKAGING / "compose" / "compose.yaml"
KUBERNETES: Final = PACKAGING / "kubernetes"


class Unit(configparser.RawConfigParser):
    """A systemd unit. An option that is given several times has its values in lines."""

    def __init__(self, path: Path) -> None:
        super().__init__(strict=False, interpolation=None, delimiters=("=",), comment_prefixes=("#",))
        self.read_string(_joined(path.read_text()))
        self.name = path.name

    def optionxform(self, optionstr: str) -> str:
        return optionstr

    def command(self, instance: str = "1") -> list[str]:
        """What ExecStart runs for an instance."""
        return shlex.split(self["Service"]["ExecStart"].replace("%i", instance))

    def environment(self) -> dict[str, str]:
        words = self["Service"].get("Environment", "").split()
        return dict(word.split("=", 1) for word in words)


def _joined(text: str) -> str:
    """Options of one name as one option of several lines, which a parser of INI files would else drop."""
    lines: list[str] = []
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        before = next((at for at, other in enumerate(lines) if equals and other.startswith(f"{name}=")), None)
        if before is None:
            lines.append(line)
        else:
            lines[before] += f" {value}"
    return "\n".join(lines)


def compose() -> dict[str, Any]:
    """The file, with its anchors and merges resolved."""
    loaded: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return loaded


def manifests() -> list[dict[str, Any]]:
    """Every object that is handed to Kubernetes."""
    files = sorted(path for path in KUBERNETES.glob("*.yaml") if path.name != "kustomization.yaml")
    return [document for path in files for document in yaml.safe_load_all(path.read_text())]


def pod_templates() -> dict[str, dict[str, Any]]:
    """The pods of each workload, by its name."""
    kinds = ("StatefulSet", "Deployment")
    return {each["metadata"]["name"]: each["spec"]["template"]["spec"] for each in manifests() if each["kind"] in kinds}


def settings_file(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def dockerfile() -> list[tuple[str, str]]:
    """Instructions with their arguments; lines that go on are joined."""
    text = (PACKAGING / "docker" / "Dockerfile").read_text()
    lines = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines if line.strip()]


class Started(NamedTuple):
    """A `headrace` command, without its first word, and where it stands."""

    where: str
    words: list[str]


def composed() -> dict[str, list[str]]:
    """The commands of Compose's services that are ours, by their names."""
    services = compose()["services"].items()
    return {name: each["command"] for name, each in services if each["image"].startswith("headrace")}


def started(variables: Mapping[str, str]) -> Iterator[Started]:
    """Every `headrace` command of the packaging, with Kubernetes' variables filled in."""
    for path in UNITS:
        words = Unit(path).command()
        options = settings_file(PACKAGING / "systemd" / "gateway.env")["OPTIONS"].split()
        yield Started(path.name, [word for each in words[1:] for word in (options if each == "$OPTIONS" else [each])])
    for name, words in composed().items():
        yield Started(f"compose {name}", words)
    for name, pod in pod_templates().items():
        for container in pod["containers"]:
            filled = [re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], word) for word in container["args"]]
            yield Started(f"kubernetes {name}", filled)
    (default,) = [yaml.safe_load(argument) for instruction, argument in dockerfile() if instruction == "CMD"]
    yield Started("Dockerfile", default)
