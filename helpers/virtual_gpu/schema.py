"""What an operator's schema says of memory: which arguments it writes to, and which results are new."""

import functools
from dataclasses import dataclass
from typing import Any

import torch

_aten = torch.ops.aten
# Views that their schema does not call so, and operations that change a tensor's shape and not its values.
_VIEWS = {_aten._unsafe_view, _aten.unsafe_split, _aten.unsafe_split_with_sizes, _aten.lift_fresh}
_VIEWS |= {_aten.resize_, _aten.set_, _aten.is_pinned, _aten.is_same_size}


@dataclass(frozen=True)
class Effects:
    """What an operator does to memory.

    Attributes:
        view: it touches no values.
        writes: positions and names of the arguments that it writes to.
        returns: for each result, the place of the written argument that it is; None for a new tensor.
    """

    view: bool
    writes: tuple[tuple[int, str], ...]
    returns: tuple[tuple[int, str] | None, ...]


@functools.cache
def effects_of(func: Any) -> Effects:
    """Return the effects of an operator."""
    schema = func._schema
    writes, by_alias = [], {}
    for position, argument in enumerate(schema.arguments):
        alias = argument.alias_info
        if alias is not None and alias.is_write:
            writes.append((position, argument.name))
            by_alias[frozenset(alias.before_set)] = (position, argument.name)
    returns, aliases = [], False
    for result in schema.returns:
        alias = result.alias_info
        aliases |= alias is not None and not alias.is_write
        returns.append(by_alias.get(frozenset(alias.before_set)) if alias is not None else None)
    view = aliases or func._overloadpacket in _VIEWS or torch.Tag.inplace_view in func.tags
    return Effects(view, tuple(writes), tuple(returns))


def argument(place: tuple[int, str], args: Any, kwargs: dict[str, Any]) -> Any:
    """Return the argument at a place of the schema, whether it was given by position or by name."""
    position, name = place
    return args[position] if position < len(args) else kwargs.get(name)
