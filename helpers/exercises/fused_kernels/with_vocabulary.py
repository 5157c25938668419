"""A model of the planner's catalog with another vocabulary: a plan of it shows what the logits cost."""

import json
from pathlib import Path

from ...planner.catalog import find_model


def with_vocabulary(name: str, tokens: int, folder: str | Path) -> str:
    """Write the config of the model `name` with a vocabulary of `tokens` into `folder`; return the file's path.

    The planner takes such a path in place of a name. Ids of special tokens are left out: they may lie beyond the new
    vocabulary, and memory does not depend on them.
    """
    sizes = find_model(name).config.to_dict() | {"vocab_size": tokens}
    sizes |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    path = Path(folder, "config.json")
    path.write_text(json.dumps(sizes), encoding="utf-8")
    return str(path)
