"""Columns that the program's own code reads by name: `row["review"]` implies a column `review`.

If the name of a data set is unknown, its columns are taken from the code that reads it. A key that the code reads and
does not write is a column, unless it is known to be a split, a tokenizer's output or a key of a configuration.
"""

import ast
import functools
import linecache
import os
import re
import sys

from ..user_line import is_course_file, is_user_file, is_users
from .columns import SHARED, layout_of, one_of
from .named import kind_of, named_columns

_NO_ROWS = re.compile(  # what a subscript is taken of that holds no rows
    r"config|cfg|args|arg|opts?|options|params?|state|states|state_dict|ckpt|checkpoint|environ|env|metrics?|outputs?|"
    r"out|stats|history|hist|logs?|loss|losses|results?|scores?|loaders?|dataloaders?|models?|optimizer|paths?|kwargs|"
    r"modules|encoded|encoding|encodings|tokens|tokenized|inputs|info|meta|globals|locals"
)
_SPLITS = {"train", "training", "test", "testing", "valid", "validation", "val", "dev", "eval", "data"}
_OUTPUTS = {  # of tokenizers, processors and models
    *("input_ids", "attention_mask", "token_type_ids", "position_ids", "special_tokens_mask", "offset_mapping"),
    *("overflow_to_sample_mapping", "decoder_input_ids", "labels", "pixel_values", "pixel_mask", "input_features"),
    *("input_values", "loss", "logits"),
}
_IN_COLUMNS = {"role", "content", "from", "value"}  # of a chat
MADE_UP = "made-up rows"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_ -]{0,29}")
_MAPPED = ("map", "replace")  # pandas' methods that take {"good": 1}
_REMOVED = ("rename_column", "remove_columns", "select_columns", "class_encode_column")


def layout_for(name: str) -> tuple[dict[str, str], list[str]]:
    """Return the columns (name -> kind) and the splits of the data set called `name`, as this program reads it.

    Columns are added that an argument names. So are those that the code reads, if the name of the data set says
    nothing, or if the code reads none of the columns that data sets of this name have.
    """
    kinds, splits = layout_of(name)
    read = asked_columns()
    if kinds.keys() == {"text"} or not kinds.keys() & read.keys():
        kinds = kinds | {column: kind for column, kind in read.items() if column not in kinds}
    return kinds | {column: kind for column, kind in named_columns().items() if column not in kinds}, splits


def rows_of(name: str) -> str:
    """Return "made-up rows", with their columns if the code decided which ones they are, for the report."""
    added = layout_for(name)[0].keys() - layout_of(name)[0].keys() - named_columns().keys()
    return f"made-up rows with {', '.join(sorted(added))}, which the script reads" if added else MADE_UP


def asked_columns() -> dict[str, str]:
    """Return the columns that the program's own files read by name, and what they hold."""
    found: dict[str, str] = {}
    for file in sorted(_files()):
        linecache.checkcache(file)  # another program may have run under this name
        found |= _columns_of("".join(linecache.getlines(file)))
    return found


def _files() -> set[str]:
    """Return the program's own files: those whose code is being run, and the modules beside them or below."""
    running: set[str] = set()
    frame = sys._getframe(1)
    while frame is not None and not (running and is_course_file(frame.f_code.co_filename)):
        if is_users(frame):
            running.add(frame.f_code.co_filename)
        frame = frame.f_back
    folders = tuple({os.path.join(os.path.dirname(os.path.abspath(file)), "") for file in running})
    loaded = {file for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))}
    return running | {file for file in loaded if file.startswith(folders) and is_user_file(file)}


@functools.lru_cache(maxsize=256)
def _columns_of(source: str) -> dict[str, str]:
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a notebook's cell with a line for IPython
        return {}
    read: list[str] = []
    written: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript):
            reads = isinstance(node.ctx, ast.Load)
            if not reads:
                written |= set(_strings(node.slice))
            elif not _NO_ROWS.fullmatch(_last_word(node.value)):
                read += _strings(node.slice)
        elif isinstance(node, ast.Call):
            read += _named_in(node)
    inner = {"from", "value"} <= set(read)
    names = [name for name in read if _NAME.fullmatch(name) and not name.isupper()]
    none = written | _SPLITS | _OUTPUTS | _IN_COLUMNS
    kinds = {name: kind_of(name) for name in sorted(names) if name not in none}
    shared = {name: SHARED for name in kinds if inner and name.startswith("conversation")}
    return kinds | shared | {name: one_of(words) for name, words in _choices(tree).items() if name in kinds}


def _choices(tree: ast.AST) -> dict[str, list[str]]:
    """Return the texts with which the code compares a column: `row["mood"] == "good"`, `{"good": 1}[row["mood"]]`."""
    literals = {
        node.targets[0].id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Dict)
    }
    found: dict[str, list[str]] = {}

    def note(column: ast.AST, words: ast.AST) -> None:
        while isinstance(column, ast.Call) and isinstance(column.func, ast.Attribute):  # row["mood"].strip().lower()
            column = column.func.value
        words = literals.get(words.id, words) if isinstance(words, ast.Name) else words
        keys = words.keys if isinstance(words, ast.Dict) else [words]
        texts = [text for key in keys if key for text in _strings(key)]
        if isinstance(column, ast.Subscript) and texts:
            for name in _strings(column.slice):
                found[name] = found.get(name, []) + [text for text in texts if text not in found.get(name, [])]

    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Eq, ast.In)):
            note(node.left, node.comparators[0])
        elif isinstance(node, ast.Subscript):
            note(node.slice, node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MAPPED:
            note(node.func.value, node.args[0] if node.args else node)
    return found


def _strings(node: ast.AST) -> list[str]:
    """Return the texts of `"a"`, `["a", "b"]` or `("a", "b")`."""
    parts = node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node]
    return [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]


def _last_word(node: ast.AST) -> str:
    """Return "config" of `self.config`, and of `config` itself; "" of anything without a name."""
    if isinstance(node, ast.Attribute):
        return node.attr.lower()
    return node.id.lower() if isinstance(node, ast.Name) else ""


def _named_in(call: ast.Call) -> list[str]:
    """Return columns that a call names: the first argument of `rename_column`, or an argument that is called so."""
    found = []
    if isinstance(call.func, ast.Attribute) and call.func.attr in _REMOVED and call.args:
        found += _strings(call.args[0])
    for word in call.keywords:
        if word.arg and re.search(r"(^|_)(columns?|text_field)$", word.arg):
            found += _strings(word.value)
    return found
