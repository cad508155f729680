"""Declarations as text, for tests."""

import textwrap
from pathlib import Path

import pytest

from headrace.spark.pipeline.document import InvalidPipeline
from headrace.spark.pipeline.loading import load
from headrace.spark.pipeline.model import Declaration

MINIMAL = """
name: small
sources:
  orders: {topic: orders}
sinks:
  copy: {from: orders, parquet: out}
"""


def declare(directory: Path, text: str, file: str = "pipeline.yaml") -> Declaration:
    """The declaration of a file with this text."""
    path = directory / file
    path.write_text(textwrap.dedent(text).lstrip("\n"))
    return load(path)


def mistakes(directory: Path, text: str, file: str = "pipeline.yaml") -> list[str]:
    """What is wrong with such a file, `LINE: message` each."""
    with pytest.raises(InvalidPipeline) as raised:
        declare(directory, text, file)
    return [problem.removeprefix(f"{directory / file}:") for problem in raised.value.problems]
