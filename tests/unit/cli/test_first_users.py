"""The first users of a cluster come from options, or from the environment, which no list of processes shows."""

from pathlib import Path

import pytest

from headrace.cli.broker import ADD_SCRAM_VARIABLE, first_users
from tests.support.cli import Run

ADMIN, OTHER = "SCRAM-SHA-512=[name=admin,password=hunter2]", "SCRAM-SHA-256=[name=other,password=hunter2]"


def test_options_go_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ADD_SCRAM_VARIABLE, raising=False)
    assert first_users(None) == {}
    assert first_users([ADMIN, OTHER]) == {"headrace.add.scram": f"{ADMIN};{OTHER}"}
    monkeypatch.setenv(ADD_SCRAM_VARIABLE, OTHER)
    assert first_users(None) == {"headrace.add.scram": OTHER}
    assert first_users([ADMIN]) == {"headrace.add.scram": ADMIN}


def test_what_is_written_wrong_is_said_and_no_password_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ADD_SCRAM_VARIABLE, "SCRAM-SHA-512=[name=admin,passwort=hunter2]")
    result = run("broker", "--listen", "127.0.0.1:0", "--metrics", "off")
    assert result.exit_code == 2
    assert "fields that are unknown: passwort" in result.output
    assert "hunter2" not in result.output


def test_the_gateways_own_user_has_no_token(run: Run, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("s3cret")
    asked = ("--sasl-mechanism", "OAUTHBEARER", "--user", "gateway", "--password-file", str(password))
    result = run("gateway", "--bootstrap", "127.0.0.1:9", "--http", "127.0.0.1:0", *asked)
    assert result.exit_code == 2
    assert "--user has no token" in result.output
