"""What is flagged for a human, and that honest answers are not."""

import inspect

from helpers.course.build.source import sources
from helpers.course.grade.intake.hand_in import reference_hand_in
from helpers.course.grade.intake.suspicious_code import flags_of

import pytest

from ...answers import topics

EXERCISES = ("x1", "x2", "x3", "x4", "x5", "x6", "x7")


def flags(text, cell="step"):
    lines = flags_of({cell: text})
    assert all(flag.startswith(cell) and len(flag) < 150 and len(flag.splitlines()) == 1 for flag in lines)
    return lines


# Labs are not handed in, and what some of them build (a function mode, threads) would be flagged in an exercise.
@pytest.mark.parametrize("source", [s for s in sources() if s.graded], ids=lambda source: source.name)
def test_reference_answers_raise_no_flags(source):
    assert flags_of(reference_hand_in(source).answers) == []


@pytest.mark.parametrize(
    ("cells", "text"),
    [
        pytest.param(("files", "preempt") if exercise == "x6" else ("step",), text, id=f"{exercise}-{name}")
        for exercise in EXERCISES
        for name, text in topics()[exercise].right.items()
    ],
)
def test_right_answers_written_differently_raise_no_flags(cells, text):
    found = [{flag.partition(", ")[2] for flag in flags(text, cell)} for cell in cells]
    assert set.intersection(*found) == set()  # each cell may use what its own part is about


def test_files_are_flagged_where_none_are_asked_for():
    text = "import os\n\nos.replace('a', 'b')\nopen('c')\ntorch.load('d')"
    assert len(flags(text)) == 3
    assert flags(text, "files") == []
    for other in ("os.system('x')", "os.kill(1, 9)", "from os import _exit", "import subprocess", "import signal"):
        assert flags("import os\n" + other, "files") != []


def test_signals_are_flagged_where_none_are_asked_for():
    text = "import signal\n\nsignal.signal(signal.SIGTERM, handler)"
    assert len(flags(text)) == 3
    assert flags(text, "preempt") == []
    for other in ("signal.raise_signal(signal.SIGTERM)", "signal.setitimer(0, 1)", "import threading", "open('c')"):
        assert flags("import signal\n" + other, "preempt") != []


@pytest.mark.parametrize(
    ("part", "name", "words"),
    [
        ("x2.epoch", "scheduler forgotten", "train_epoch ignores its parameter `scheduler`"),
        ("x2.step", "one big batch", "accumulated_step ignores its parameter `micro_batch`"),
        ("x2.step", "full batch behind a faked forward", "_forward_pre_hooks"),
        ("x4.layer", "alpha ignored", "LoRALinear.__init__ ignores its parameter `alpha`"),
        ("x1.compare", "always trained in FP32", "train ignores its parameter `precision`"),
    ],
)
def test_wrong_answers_that_ignore_something_are_flagged(part, name, words):
    (mutant,) = [m for m in topics()[part.partition(".")[0]].mutants if (m.part, m.name) == (part, name)]
    assert any(words in flag for flag in flags(mutant.source()))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import subprocess", "line 1: imports `subprocess`"),
        ("import os\n\nos.system('x')", "line 3: uses `os.system`"),
        ("import os as o\no._exit(1)", "line 2: uses `os._exit`"),
        ("from os import system as s\ns('x')", "line 1: imports `os.system`"),
        ("import os\nx = os", "line 2: uses `os`"),
        ("sys.modules['torch'] = 1", "uses `sys.modules`"),
        ("import sys\nsys._getframe()", "uses `sys._getframe`"),
        ("import ctypes, gc, inspect, socket, threading", "imports `threading`"),
        ("import multiprocessing as mp", "imports `multiprocessing`"),
        ("from concurrent.futures import ThreadPoolExecutor", "concurrent.futures"),
        ("from torch import multiprocessing", "torch.multiprocessing"),
        ("import pickle", "imports `pickle`"),
        ("import shutil", "imports `shutil`"),
        ("from unittest import mock", "unittest.mock"),
        ("from importlib import reload", "importlib.reload"),
        ("from pathlib import Path", "imports `pathlib.Path`"),
        ("Path('x').read_text()", "uses `pathlib.Path`"),
        ("with open('x') as f:\n    pass", "uses `open`"),
        ("torch.load('x')", "uses `torch.load` (files)"),
        ("import builtins", "imports `builtins`"),
        ("__builtins__.print = 3", "uses `__builtins__`"),
        ("import builtins as b\nb.print = 3", "changes `builtins.print`"),
        ("f.__globals__['x']", "uses `__globals__`"),
        ("f.__closure__[0].cell_contents", "uses `cell_contents`"),
        ("f.__code__ = g.__code__", "uses `__code__`"),
        ("error.__traceback__.tb_frame.f_back", "uses `f_back`"),
        ("().__class__.__bases__[0].__subclasses__()", "uses `__subclasses__`"),
        ("getattr(f, '__globals__')", "names `__globals__` in a string"),
        ("getattr(torch, 'a' + b)", "looks up a computed name in `torch`"),
        ("torch.allclose = lambda *a: True", "changes `torch.allclose`"),
        ("torch.Tensor.backward = f", "changes `torch.Tensor.backward`"),
        ("t = torch\nt.allclose = f", "line 2: changes `torch.allclose`"),
        ("nn.Linear.forward = f", "changes `torch.nn.Linear.forward`"),
        ("torch.a, x = 1, 2", "changes `torch.a`"),
        ("del torch.a", "changes `torch.a`"),
        ("torch.__dict__['a'] = 1", "changes `torch.__dict__`"),
        ("MemoryMeter.measure = f", "changes `MemoryMeter.measure`"),
        ("from helpers import MemoryMeter as M\nM.measure = f", "changes `helpers.MemoryMeter.measure`"),
        ("setattr(torch, 'allclose', f)", "changes `torch` by setattr"),
        ("def f(model):\n    model.forward = model", "line 2: replaces `forward` of an object"),
        ("def f(model):\n    type(model).x = 1", "changes `x` of a class"),
        ("def f(model):\n    model.__class__ = X", "changes `__class__` of a class"),
        ("exec('x')", "uses `exec`"),
        ("eval('x')", "uses `eval`"),
        ("compile('x', '', 'exec')", "uses `compile`"),
        ("__import__('os')", "uses `__import__`"),
        ("globals()['x'] = 1", "uses `globals`"),
        ("input()", "uses `input`"),
        ("get_ipython().kernel", "uses `get_ipython`"),
        ("x = 1\n!ls", "line 2: is a shell line or a magic"),
        ("%time f()", "is a shell line or a magic"),
        ("%%bash\nls", "is a shell line or a magic"),
        ("files = !ls", "is a shell line or a magic"),
        ("from helpers.exercises.reference.x1 import train_step", "the course's own checks"),
        ("from helpers import exercises", "the course's own checks"),
        ("import helpers.course.grade", "the course's own grader"),
        ("x = 'helpers.exercises' + y", "names `helpers.exercises` in a string"),
        ("x = '../solutions/03.py'", "names `solutions` in a string"),
        ("from reference import x", "imports `reference.x`"),
        ("display({'a': 1}, raw=True)", "displays raw data"),
        ("x = 'application/vnd.training-at-scale.evidence'", "names the grader's evidence in a string"),
        ("def f(a, *, b):\n    return a", "f ignores its parameter `b`"),
        ("def f(a, b):\n    b = 1\n    return a + b", None),
        ("def f(:", "does not parse"),
        ("x = '\0'", "does not parse"),
        ("x = '\ud800'", "does not parse"),
        ("(" * 90_000, "does not parse"),
        ("-" * 90_000 + "1", "does not parse"),
        ("a" + ".b" * 40_000, "does not parse"),
        ("x = 1\n" * 50_000, "too long to be examined"),
    ],
)
def test_is_flagged(text, words):
    lines = flags(text)
    assert words is None or any(words in flag for flag in lines), lines


@pytest.mark.parametrize(
    "text",
    [
        "",
        "raise NotImplementedError()",
        "import os\nrank = int(os.environ['RANK'])",
        "torch.backends.cudnn.benchmark = True",
        "import re\nre.compile('x')",
        "model = torch.compile(model)",
        "def f(model):\n    return model.eval()",
        "def f(model):\n    for p in model.parameters():\n        p.grad = None",
        "def f(a, b):\n    raise NotImplementedError()",
        "def f(a, b):\n    '''Say what comes.'''",
        "def f(a, _b, *args, **kwargs):\n    return a",
        "class A:\n    def __exit__(self, kind, value, trace):\n        return self",
        "class A:\n    @staticmethod\n    def f(a):\n        return a",
        "def f(a):\n    def hook(module, x, y):\n        return a\n    return hook",
        "def f(signal, code):\n    return signal.sum() + code.x",
        "def f():\n    '''Compare with the reference, see solutions.'''\n    return 1",
        "x = '\\d'",
        "for parent, name in pairs:\n    setattr(parent, name, nn.Identity())",
        "display(model)",
    ],
)
def test_is_not_flagged(text):
    assert flags(text) == []


def test_at_most_ten_flags_an_answer_then_a_count():
    text = "\n".join(f"torch.a{i} = {i}" for i in range(25))
    lines = flags_of({"step": text, "epoch": "import gc"})
    assert len(lines) == 12
    assert lines[9:] == [
        "step, line 10: changes `torch.a9`.",
        "step: 15 more of this kind.",
        "epoch, line 1: imports `gc`.",
    ]


def test_the_same_finding_is_named_once_at_its_first_line():
    assert flags("x = 1\nexec(x)\nexec(x)") == ["step, line 2: uses `exec`."]


def test_nothing_of_an_answer_is_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags("open('here', 'w')\n!touch there")
    assert list(tmp_path.iterdir()) == []
    assert "exec(" not in inspect.getsource(inspect.getmodule(flags_of))


def test_names_cross_answer_cells():
    assert flags_of({"one": "import subprocess as quiet", "two": "quiet.run('x')"})[1:] == [
        "two, line 1: uses `subprocess.run`."
    ]
