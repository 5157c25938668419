"""What a human should look at in an answer: constructs that an honest answer does not need.

A flag costs no points. Code can hide names from a check like this one; what keeps grades right is that the evidence is
judged outside the learner's kernel, and that the kernel runs in a sandbox.
"""

import ast
import re
import warnings
from collections.abc import Iterator

from ...kernel.mime import MIME

MOST = 10  # flags for an answer
_LONGEST = 100_000  # characters of an answer that is parsed

_WHOLE_MODULES = """
    IPython _thread asyncio atexit builtins cffi cloudpickle code concurrent ctypes dill dis fcntl gc glob http
    importlib inspect io ipykernel joblib jupyter_client linecache marshal mmap mock multiprocessing pathlib pickle
    pkgutil psutil pty requests resource runpy sched shelve shutil signal site socket sqlite3 subprocess symtable
    tempfile threading traceback tracemalloc unittest urllib zmq
"""
_MODULES: dict[str, set[str]] = {  # the harmless names of a module
    **{name: set() for name in _WHOLE_MODULES.split()},
    "os": {"environ", "getenv", "cpu_count", "path", "sched_getaffinity"},
    "sys": {"maxsize", "float_info", "version", "version_info", "platform", "stdout", "stderr", "byteorder"},
    "types": {"SimpleNamespace"},
}
_SET_UP = {  # names that set-up cells import
    "F": "torch.nn.functional",
    "nn": "torch.nn",
    "dist": "torch.distributed",
    "Path": "pathlib.Path",
}
_PARTS = {  # of modules that answers may otherwise use
    "helpers.exercises": "the course's own checks",
    "helpers.course": "the course's own grader",
    "torch.multiprocessing": "processes",
    "torch.hub": "downloads",
    "torch.load": "files",
    "torch.serialization": "files",
    "torch.utils.cpp_extension": "a compiler",
    "torch.utils._python_dispatch": "PyTorch's dispatcher",
    "torch.overrides": "PyTorch's dispatcher",
    "torch.library": "PyTorch's dispatcher",
    "torch._C": "what PyTorch is made of",
    "torch.jit": "code that runs outside of Python",
    "numpy.load": "files",
    "numpy.save": "files",
}
_BUILT_IN = """
    exec eval compile __import__ globals locals breakpoint input open get_ipython __builtins__ __loader__ __spec__
"""
_NAMES = set(_BUILT_IN.split())
_INNARDS = """
    __globals__ __closure__ __code__ __dict__ __builtins__ __subclasses__ __bases__ __mro__ __loader__ __spec__
    __getattribute__ __traceback__ __defaults__ __kwdefaults__ __wrapped__ __reduce__ cell_contents f_back f_globals
    f_locals f_builtins f_code gi_frame cr_frame ag_frame tb_frame tb_next _forward_hooks _forward_pre_hooks
    _backward_hooks _global_forward_hooks
"""
_ATTRIBUTES = set(_INNARDS.split())
_SHELL = {"system", "getoutput", "run_line_magic", "run_cell_magic"}
_WORDS = re.compile(r"helpers[./]exercises|helpers[./]course|\breference\b|\bsolutions?\b|\b__\w+__\b")
_PATCHED = {"forward", "backward", "step", "zero_grad", "__call__"}
_SETTINGS = ("torch.backends.",)  # what PyTorch documents as set by assignment
_FILES = re.compile(
    r"""(imports|uses)\ `(io|pathlib|shutil|tempfile|os)`
    |(imports|uses)\ `(io|pathlib|shutil|tempfile|torch\.load|torch\.serialization)\b
    |(imports|uses)\ `os\.(close|fdatasync|fsync|link|listdir|makedirs|mkdir|open|O_\w+|PathLike|remove|rename|replace
        |rmdir|scandir|stat|sync|unlink|walk|write)`
    |uses\ `open`""",
    re.VERBOSE,
)
_ASKED_FOR = {  # by the name of an answer cell: what its contract asks for; both are of X6
    "files": _FILES,
    "preempt": re.compile(r"imports `signal`|uses `signal\.(signal|SIG[A-Z0-9]+)`"),
}


def flags_of(answers: dict[str, str]) -> list[str]:
    """Return what a human should look at in `answers` (by the name of their cell), a short line each.

    At most ten lines an answer, and one that counts the others. The same finding is named once, at its first line.
    """
    trees, flags = {}, {}
    for name, text in answers.items():
        trees[name], flags[name] = _parsed(text)
    known = _Names([tree for tree in trees.values() if tree])
    lines = []
    for name, tree in trees.items():
        first_lines: dict[str, int] = {}
        for what, line in sorted(_findings(tree, known), key=lambda item: item[1]) if tree else ():
            if not (name in _ASKED_FOR and _ASKED_FOR[name].match(what)):
                first_lines.setdefault(what, line)
        findings = flags[name] + [f"line {line}: {what}" for what, line in first_lines.items()]
        lines += [f"{name}, {text}." for text in findings[:MOST]]
        lines += [f"{name}: {len(findings) - MOST} more of this kind."] if len(findings) > MOST else []
    return lines


def _parsed(text: str) -> tuple[ast.Module | None, list[str]]:
    """Return the syntax tree of an answer, as IPython would run it."""
    if len(text) > _LONGEST:
        return None, [f"too long to be examined ({len(text):,} characters)"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a learner's "\d" does not matter here
        for prepared in (str, _without_magics):
            try:
                return ast.parse(prepared(text)), []
            except Exception:  # syntax, NUL bytes, nesting without end
                continue
    return None, ["does not parse"]


def _without_magics(text: str) -> str:
    from IPython.core.inputtransformer2 import TransformerManager

    return TransformerManager().transform_cell(text)


class _Names:
    """Which names in the answers are the learner's own, and which come from outside."""

    def __init__(self, trees: list[ast.Module]) -> None:
        self.own: set[str] = set()
        self.modules: dict[str, str] = {}  # e.g. {"F": "torch.nn.functional"}
        other_names: dict[str, str] = {}  # `t = torch`: torch by another name
        for node in _walk(trees):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    self.modules[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self.modules[alias.asname or alias.name] = f"{node.module or ''}.{alias.name}"
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self.own.add(node.id)
            elif isinstance(node, ast.arg):
                self.own.add(node.arg)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.ExceptHandler):
                self.own.add(node.name or "")
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
                other_names |= {target.id: node.value.id for target in node.targets if isinstance(target, ast.Name)}
        for name, origin in other_names.items():
            if origin in self.modules or origin not in self.own:
                self.modules.setdefault(name, self.modules.get(origin) or _SET_UP.get(origin, origin))

    def full(self, node: ast.AST) -> str:
        """Return the full dotted name of something from outside, e.g. "torch.nn.Linear"; "" if it is the learner's."""
        path = []
        while isinstance(node, ast.Attribute):
            path.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or (node.id in self.own and node.id not in self.modules):
            return ""
        begins = self.modules.get(node.id) or _SET_UP.get(node.id, node.id)
        return ".".join([begins, *reversed(path)])


def _walk(trees: list[ast.Module]) -> Iterator[ast.AST]:
    for tree in trees:
        yield from ast.walk(tree)


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _findings(tree: ast.Module, names: _Names) -> Iterator[tuple[str, int]]:
    """Yield each finding and its line."""
    documented = _docstrings(tree)
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _imported(alias.name, "", line)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield from _imported(node.module or "", alias.name, line)
        elif isinstance(node, ast.Attribute):
            yield from _attribute(node, names, line, outermost=id(node) not in inner)
        elif isinstance(node, ast.Name):
            if id(node) not in inner and isinstance(node.ctx, ast.Load):
                yield from _name(node, names, line)
            elif node.id in _NAMES and id(node) in inner and node.id not in names.own:
                yield f"uses `{node.id}`", line
        elif isinstance(node, ast.Call):
            yield from _call(node, names, line)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            if MIME in node.value:
                yield "names the grader's evidence in a string", line
            elif word := _WORDS.search(node.value):
                yield f"names `{word[0]}` in a string", line
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete):
            targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [node.target]
            for target in targets:
                yield from _assigned(target, names, line)
    yield from _unread(tree)


def _docstrings(tree: ast.Module) -> set[int]:
    """Return the ids of the nodes of docstrings, in which people write about references and solutions."""
    statements = (node for node in ast.walk(tree) if isinstance(node, ast.Expr))
    return {id(node.value) for node in statements if isinstance(node.value, ast.Constant)}


def _imported(module: str, name: str, line: int) -> Iterator[tuple[str, int]]:
    full = f"{module}.{name}" if name else module
    top, _, rest = full.partition(".")
    part = next((p for p in _PARTS if full == p or full.startswith(f"{p}.")), None)
    if top in _MODULES and (rest.partition(".")[0] not in _MODULES[top] if rest else not _MODULES[top]):
        yield f"imports `{full}`", line
    elif part:
        yield f"imports `{full}` ({_PARTS[part]})", line
    elif "reference" in full.split(".") or "solutions" in full.split("."):
        yield f"imports `{full}`", line


def _attribute(node: ast.Attribute, names: _Names, line: int, outermost: bool) -> Iterator[tuple[str, int]]:
    if node.attr in _ATTRIBUTES:
        yield f"uses `{node.attr}`", line
    full = names.full(node) if outermost and isinstance(node.ctx, ast.Load) else ""
    if full:
        yield from _outside(full, line)


def _name(node: ast.Name, names: _Names, line: int) -> Iterator[tuple[str, int]]:
    if node.id in names.own:
        return
    full = names.full(node)
    if full in _NAMES or full.startswith("builtins.") or ("." not in full and full in _MODULES):
        yield f"uses `{full}`", line
    elif "." in full:
        yield from _outside(full, line)


def _outside(full: str, line: int) -> Iterator[tuple[str, int]]:
    top, _, rest = full.partition(".")
    part = next((p for p in _PARTS if full == p or full.startswith(f"{p}.")), None)
    if top in _MODULES and rest.partition(".")[0] not in _MODULES[top]:
        yield f"uses `{full}`", line
    elif part:
        yield f"uses `{full}` ({_PARTS[part]})", line


def _call(node: ast.Call, names: _Names, line: int) -> Iterator[tuple[str, int]]:
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if called in _SHELL and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call):
        yield "is a shell line or a magic", line
    if called in ("setattr", "delattr", "__setattr__", "__delattr__") and node.args:
        target = names.full(node.args[0])
        if target and not target.startswith(_SETTINGS):
            yield f"changes `{target}` by {called}", line
    if called == "getattr" and len(node.args) > 1:
        target, constant = names.full(node.args[0]), isinstance(node.args[1], ast.Constant)
        if target and not constant:
            yield f"looks up a computed name in `{target}`", line
    raw = any(keyword.arg == "raw" for keyword in node.keywords)
    if called in ("publish_display_data", "display_pub") or (called == "display" and raw):
        yield "displays raw data in the way that the grader's evidence is displayed", line


def _assigned(target: ast.AST, names: _Names, line: int) -> Iterator[tuple[str, int]]:
    if isinstance(target, ast.Tuple | ast.List):
        for each in target.elts:
            yield from _assigned(each, names, line)
        return
    while isinstance(target, ast.Subscript):  # torch.__dict__["x"] = ...
        target = target.value
    if not isinstance(target, ast.Attribute):
        return
    full = names.full(target)
    if full and not full.startswith(_SETTINGS):
        yield f"changes `{full}`", line
    elif target.attr in _PATCHED and _root(target) not in ("self", "cls"):
        yield f"replaces `{target.attr}` of an object", line
    elif target.attr == "__class__" or _is_class(target.value):
        yield f"changes `{target.attr}` of a class", line


def _is_class(node: ast.AST) -> bool:
    """Say whether `node` is type(x) or x.__class__."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "type"
    return isinstance(node, ast.Attribute) and node.attr == "__class__"


def _unread(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the parameters that a function, or a method of a class, never reads."""
    for node in tree.body:
        members = [(f"{node.name}.", each) for each in node.body] if isinstance(node, ast.ClassDef) else [("", node)]
        for prefix, function in members:
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) or _left_open(function):
                continue
            name = function.name
            if prefix and name.startswith("__") and name != "__init__":  # __exit__ has parameters that it need not read
                continue
            read = {n.id for part in function.body for n in ast.walk(part) if isinstance(n, ast.Name)
                    and not isinstance(n.ctx, ast.Store)}  # fmt: skip
            parameters = function.args
            bound = prefix and not any(_root(d) == "staticmethod" for d in function.decorator_list)  # self or cls
            for arg in [*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs][1 if bound else 0 :]:
                if arg.arg not in read and not arg.arg.startswith("_"):
                    yield f"{prefix}{name} ignores its parameter `{arg.arg}`", function.lineno


def _left_open(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Say whether a function has not been written yet, or only raises."""
    last = function.body[-1]
    empty = isinstance(last, ast.Pass) or (isinstance(last, ast.Expr) and isinstance(last.value, ast.Constant))
    return isinstance(last, ast.Raise) or (empty and len(function.body) <= 2)
