"""Watching, and colours: what a terminal gets, and what a pipe gets."""

import io
from contextlib import redirect_stdout

import pytest

from headrace.cli.cluster.tables import show
from headrace.cli.console import bad, coloured, note, say, say_table
from headrace.cli.watching import watching
from headrace.client.errors import ClientError
from headrace.ops.overview import BrokerView, ClusterView, PartitionView

RED = "\x1b[1;31m"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """To be put in the place of standard output by the test itself, as pytest captures that for each of its phases."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that a watch has made; the second one ends it."""
    made: list[float] = []

    def pause(seconds: float) -> None:
        made.append(seconds)
        if len(made) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("headrace.cli.watching.time.sleep", pause)
    return made


def test_a_terminal_is_drawn_over_and_keeps_to_its_height(
    terminal: Terminal, rounds: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINES", "6")

    def shown() -> None:
        for number in range(10):
            say(f"line {number}")
        note("a note")

    with pytest.raises(KeyboardInterrupt), redirect_stdout(terminal):
        watching(shown, True, 1.5)
    assert rounds == [1.5, 1.5]
    frames = terminal.getvalue().split("\x1b[H")[1:]
    assert [frame.count("\n") for frame in frames] == [5, 5]
    assert "line 2" in frames[1]
    assert "… 8 more lines" in frames[1]


def test_a_pipe_gets_one_answer_after_the_other(rounds: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        watching(lambda: say("answer"), True, 1.0)
    assert capsys.readouterr().out == "answer\nanswer\n"
    assert len(rounds) == 2


@pytest.mark.usefixtures("rounds")
def test_an_error_ends_a_watch_only_at_its_beginning(capsys: pytest.CaptureFixture[str]) -> None:
    answers = iter([None, ClientError("gone for now")])

    def flaky() -> None:
        error = next(answers)
        if error is not None:
            raise error
        say("fine")

    with pytest.raises(KeyboardInterrupt):
        watching(flaky, True, 1.0)
    out = capsys.readouterr()
    assert (out.out, out.err) == ("fine\n", "headrace: gone for now\n")
    with pytest.raises(ClientError):
        watching(lambda: (_ for _ in ()).throw(ClientError("not there")), True, 1.0)


def sick() -> ClusterView:
    partition = PartitionView(
        topic="orders", partition=0, leader=1, leader_epoch=3, replicas=(1, 2), isr=(1,), offline=(2,), elr=()
    )
    brokers = (BrokerView(id=1, host="h", port=1, rack=None), BrokerView(id=2, host="", port=0, rack=None))
    return ClusterView(cluster_id="c", controller=1, brokers=brokers, partitions=(partition,))


def test_what_is_wrong_is_red_on_a_terminal_alone(terminal: Terminal) -> None:
    with redirect_stdout(terminal):
        show(sick(), {}, None, {}, every_partition=False)
    assert RED in terminal.getvalue()
    with redirect_stdout(io.StringIO()) as plain:
        show(sick(), {}, None, {}, every_partition=False)
    assert "orders" in plain.getvalue()
    assert "\x1b" not in plain.getvalue()


def test_no_color_is_respected(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    with redirect_stdout(terminal):
        say(coloured(bad("broken")))
        say_table(("A",), [(bad("broken"),)])
    assert terminal.getvalue().count("broken") == 2
    assert "31m" not in terminal.getvalue()
