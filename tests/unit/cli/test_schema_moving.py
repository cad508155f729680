"""`headrace schema export` and `import`."""

import json
from pathlib import Path

import pytest

from tests.support.cli import Run
from tests.support.registry.serving import in_memory, serving
from tests.unit.registry.test_confluent_topic import TOPIC, schema


@pytest.mark.slow
def test_the_command_moves_a_registry_by_way_of_a_file(run: Run, tmp_path: Path) -> None:
    topic, again = tmp_path / "topic.txt", tmp_path / "again.txt"
    topic.write_text("\n".join(line for line in TOPIC[:-2] if "aliasForDeks" not in line))
    with serving(in_memory) as url:
        assert run("schema", "import", str(topic), "--registry", url).stdout == "8 versions of 6 subjects\n"
        assert run("schema", "export", str(again), "--registry", url).stdout.endswith(": 8 versions in 10 records\n")
        assert run("schema", "export", "-", "--registry", url).stdout == again.read_text()
        bad = schema("bad", 1, 50, "{")
        again.write_text(bad)
        refused = run("schema", "import", str(again), "--registry", url, "--json")
        assert refused.exit_code == 1
        assert "bad version 1: " in json.loads(refused.stdout)["troubles"][0]
