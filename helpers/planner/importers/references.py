"""References between the values of a YAML, as OmegaConf has them: `${variables.seq}` stands for another value."""

import re
from collections.abc import Mapping
from typing import Any

_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_DEEPEST = 8  # references that lead to references


def resolved(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with references replaced; a reference that leads nowhere stays as it stands.

    A reference is relative (`${.hidden_size}`) to the table that it stands in, or starts at the top.
    """

    def value_of(value: Any, table: Mapping[str, Any], depth: int = 0) -> Any:
        if isinstance(value, Mapping):
            return {name: value_of(each, value, depth) for name, each in value.items()}
        if isinstance(value, list):
            return [value_of(each, table, depth) for each in value]
        found = _REFERENCE.fullmatch(value.strip()) if isinstance(value, str) else None
        if found is None or depth == _DEEPEST:
            return value
        path = found[1]
        other = _at(table, path[1:]) if path.startswith(".") else _at(given, path)
        return value if other is None else value_of(other, table, depth + 1)

    return {name: value_of(each, given) for name, each in given.items()}


def _at(table: Any, path: str) -> Any:
    for name in path.split("."):
        table = table.get(name) if isinstance(table, Mapping) else None
    return table
