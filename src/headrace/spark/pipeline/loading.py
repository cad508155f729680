"""A pipeline from its file, YAML or Python."""

import os
from pathlib import Path

from .authoring import Pipeline
from .document import InvalidPipeline, Problems
from .functions import FunctionError, load_file
from .model import Declaration
from .reading import read_declaration


def load(file: Path) -> Declaration:
    """The checked pipeline of a file; InvalidPipeline tells all that is wrong, OSError that it cannot be read."""
    if file.suffix == ".py":
        return _from_python(file)
    from .yaml_file import read_yaml

    problems = Problems()
    return read_declaration(read_yaml(_text(file), str(file), os.environ, problems), file, problems)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidPipeline([f"{file}:1: the file is not text in UTF-8"]) from error


def _from_python(file: Path) -> Declaration:
    file.open().close()
    try:
        module = load_file(file)
    except FunctionError as error:
        raise InvalidPipeline([str(error)]) from error
    found = [value for value in vars(module).values() if isinstance(value, Pipeline)]
    if len(found) != 1:
        count = "no" if not found else f"{len(found)}"
        raise InvalidPipeline([f"{file}:1: there must be one `Pipeline(...)` in the file, and there is {count}"])
    return found[0].declaration(file)
