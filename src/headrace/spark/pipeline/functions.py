"""Functions that a declaration names: `file.py:function` beside it, or `package.module:function` as installed."""

import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType

from .document import InvalidPipeline
from .model import Function


class FunctionError(Exception):
    """The function cannot be had; the message says why."""


def load_function(reference: str, directory: Path) -> Function:
    """The function that a reference names; files are found from `directory`."""
    module_name, colon, name = reference.rpartition(":")
    if not colon or not module_name or not name.isidentifier():
        raise FunctionError(f"'{reference}' is not FILE.py:FUNCTION or MODULE:FUNCTION, for example fraud.py:flag")
    module = load_file(directory / module_name) if module_name.endswith(".py") else _import(module_name)
    function = getattr(module, name, None)
    if function is None:
        raise FunctionError(f"{module_name} has no function '{name}'")
    if not callable(function):
        raise FunctionError(f"'{name}' in {module_name} is not a function")
    return function  # type: ignore[no-any-return]


def load_file(file: Path) -> ModuleType:
    """A Python file as a module, run once per process. Modules beside it can be imported by it."""
    path = file.resolve()
    if not path.is_file():
        raise FunctionError(f"there is no file {file}")
    known = sys.modules.get(path.stem)
    if known is not None and _file_of(known) == path:
        return known
    name = path.stem if known is None else f"{path.stem}_{abs(hash(str(path)))}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise FunctionError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _importable(path.parent)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, InvalidPipeline) or not isinstance(error, Exception):
            raise
        raise FunctionError(f"{file} does not load: {_reason(error, path)}") from error
    return module


def modules_beside(directory: Path) -> list[ModuleType]:
    """Loaded modules whose files lie in a directory: no other machine has them, so they travel with their functions."""
    home = directory.resolve()
    return [module for module in list(sys.modules.values()) if home in _parents(module)]


def _parents(module: ModuleType) -> list[Path]:
    file = _file_of(module)
    return [] if file is None or "site-packages" in file.parts else [file.parent]


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if isinstance(file, str) else None


def _importable(directory: Path) -> None:
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise FunctionError(f"module '{name}' does not load: {type(error).__name__}: {error}") from error


def _reason(error: Exception, path: Path) -> str:
    """What was raised, and by which line of the file."""
    lines = (
        [frame.lineno for frame in inspect.getinnerframes(error.__traceback__) if frame.filename == str(path)]
        if error.__traceback__
        else []
    )
    line = error.lineno if isinstance(error, SyntaxError) else (lines[-1] if lines else None)
    return f"{type(error).__name__}: {error}" + (f" (line {line})" if line else "")


def parameters(function: Function) -> list[inspect.Parameter]:
    """What a function is called with."""
    return list(inspect.signature(function).parameters.values())
