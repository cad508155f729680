"""`headrace pipeline test`: rows in, rows out, without a broker."""

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from ..console import ExitCode, bad_input, examples, note, say, say_json
from ..options import Json
from .commands import File, all_problems, load_declaration


def register(app: typer.Typer) -> None:
    app.command(
        "test",
        epilog=examples(
            "headrace pipeline test pipeline.yaml",
            "headrace pipeline test pipeline.yaml --tests more.yaml --only 'sums by country'",
        )
        + "\n\nExit codes: 0 all have passed, 1 some have not, 2 a mistake in a file.",
    )(rehearse)


def rehearse(
    file: File,
    tests: Annotated[
        Path | None,
        typer.Option("--tests", metavar="FILE", help="Where tests are.", show_default="NAME.test.yaml beside it"),
    ] = None,
    only: Annotated[str | None, typer.Option("--only", metavar="NAME", help="One test.")] = None,
    json: Json = False,
) -> None:
    """Test a pipeline: given rows of its sources, its tables must have the rows that are expected.

    Spark runs on this machine and computes all tables as a batch; no broker and no sink is asked.
    """
    from headrace.spark.pipeline.document import InvalidPipeline, Problems
    from headrace.spark.pipeline.failures import PipelineFailed
    from headrace.spark.pipeline.rehearsal import place_of_tests, read_tests, run_tests
    from headrace.spark.pipeline.run import ship_functions
    from headrace.spark.pipeline.session import SparkTarget, open_session
    from headrace.spark.pipeline.yaml_file import read_yaml

    declaration = load_declaration(file)
    place = tests or place_of_tests(file)
    if not place.is_file():
        raise bad_input(f"there is no file {place}; write tests there, or name another one with --tests")
    try:
        problems = Problems()
        tree = read_yaml(place.read_text("utf-8"), str(place), os.environ, problems)
        problems.raise_any()
        found = read_tests(tree, declaration)
    except InvalidPipeline as error:
        raise all_problems(error.problems) from error
    chosen = [one for one in found if only in (None, one.name)]
    if not chosen:
        raise bad_input(f"{place} has no test '{only}'; it has {', '.join(one.name for one in found)}")
    failed = 0
    with tempfile.TemporaryDirectory(prefix="headrace-test-") as directory:
        note("starting Spark (local[*])")
        log = Path(directory) / "spark.log"
        try:
            with open_session(SparkTarget(), declaration.name, declaration.spark, log) as spark:
                ship_functions(declaration)
                for outcome in run_tests(spark, declaration, chosen):
                    failed += bool(outcome.problems)
                    if json:
                        say_json({"test": outcome.name, "passed": not outcome.problems, "problems": outcome.problems})
                        continue
                    say(f"{'FAILED' if outcome.problems else 'passed'}: {outcome.name}")
                    for problem in outcome.problems:
                        say(f"  {problem}")
        except PipelineFailed as error:
            raise all_problems([str(error)]) from error
    if not json:
        say(f"{len(chosen) - failed} passed, {failed} failed")
    if failed:
        raise typer.Exit(ExitCode.FAILED)
