"""The topic that deployed pipelines are kept in. Brokers know its name: whoever writes there has services run code."""

from typing import Final

DEFINITIONS: Final = "__headrace_pipelines"
