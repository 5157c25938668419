"""What tells a check that something under it is not what it should be: kernels, modes, data, kinds of tensors."""

import os
import subprocess
import sys
from pathlib import Path

from helpers.course.kernel.dispatcher import Dispatcher, leave_modes
from helpers.course.kernel.guard import Guard
from helpers.exercises.probing.fingerprint import OTHER_DATA, fingerprint
from helpers.exercises.probing.plain import plain
from helpers.exercises.x1.compare import AccuracyHolds
from helpers.exercises.x2 import scaled
from helpers.exercises.x4.finetune import LearnsTheNewText

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class Subclass(torch.Tensor):
    pass


def test_a_builtin_that_a_module_did_not_have_is_taken_away():
    guard = Guard()
    assert guard.restore() == []
    scaled.max = lambda *_, **__: 4
    assert guard.restore() == ["helpers.exercises.x2.scaled.max"]
    assert "max" not in vars(scaled)
    assert guard.restore() == []


def _loss(logits, *, gain=1):
    return logits * gain


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda f: setattr(f, "__code__", (lambda logits, *, gain=1: 0).__code__), "body"),
        (lambda f: setattr(f, "__kwdefaults__", {"gain": 2}), "keyword defaults"),
        (lambda f: setattr(f, "__kwdefaults__", None), "keyword defaults"),
        (lambda f: f.__kwdefaults__.update(gain=2), "keyword defaults"),
        (lambda f: f.__kwdefaults__.update(other=2), "keyword defaults"),
        (lambda f: f.__kwdefaults__.clear(), "keyword defaults"),
    ],
)
def test_what_a_function_does_without_being_replaced_is_put_back(monkeypatch, change, told):
    monkeypatch.setattr(scaled, "loss", _loss, raising=False)
    guard = Guard()
    change(_loss)
    assert guard.restore() == [f"the {told} of tests.grade.test_tampering._loss"]
    assert _loss(3) == 3
    assert guard.restore() == []


@pytest.mark.parametrize(("key", "told"), [("CPU", True), ("AutogradCPU", True), ("Meta", False)])
def test_another_kernel_is_told_where_it_decides_what_is_computed(key, told):
    dispatcher = Dispatcher()
    assert dispatcher.other_kernels() == []
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("special_zeta", lambda a, b: a, key, allow_override=True)
        assert dispatcher.other_kernels() == (["the kernel of aten::special_zeta"] if told else [])
    finally:
        library._destroy()
    assert dispatcher.other_kernels() == []


GUARDED = """
import os

os.environ["GRADED_EXERCISE"] = "x2"
import helpers.exercises.x2.step as step
import torch
from helpers.course.kernel.warm import GUARD

print(GUARD.restore())
step.max = lambda *_, **__: 4
torch.nn.Linear.forward = torch.nn.Linear.extra_repr
del torch.testing.assert_close
print(sorted(GUARD.restore()), hasattr(step, "max"), hasattr(torch.testing, "assert_close"))
print(GUARD.restore())
"""


@pytest.mark.slow
def test_what_is_replaced_or_put_before_a_builtin_is_put_back():
    done = subprocess.run([sys.executable, "-c", GUARDED], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "[]",
        "['helpers.exercises.x2.step.max', 'torch.nn.modules.linear.Linear.forward', 'torch.testing.assert_close']"
        " False True",
        "[]",
    ]


def test_only_the_guard_reads_bodies_unheard():
    code = """
import threading
from helpers.course.kernel.guard import Guard
from helpers.course.kernel.watch import Watch
import helpers.exercises.x2.step

guard, watch, names = Guard(), Watch(), {"f": lambda: 0}
answer = compile("f.__code__, f.__defaults__", "<answer read>", "exec")
other = compile("(i for i in ()).gi_code", "<answer other>", "exec")
on_a_thread = compile("f.__defaults__", "<answer thread>", "exec")
assert guard.restore(watch.reading_bodies()) == [] == watch.heard
with watch.reading_bodies():
    exec(answer, names)
    exec(other, names)
    thread = threading.Thread(target=exec, args=(on_a_thread, names))
    thread.start()
    thread.join()
exec(answer, names)
print(*watch.heard, sep="\\n")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    reads = "reads one of Python's internal attributes (object.__getattr__)"
    assert done.stdout.splitlines() == [f"{cell}: {reads}" for cell in ("other", "thread", "read")]


def test_imports_of_installed_libraries_are_not_heard(tmp_path):
    (tmp_path / "beside.py").write_text("")
    code = """
import sys
from helpers.course.kernel.watch import Watch

watch = Watch()
for cell in ("import wave, lzma, importlib.metadata, yaml", "import beside", "open(wave.__file__).close()",
             "from importlib.machinery import SourceFileLoader as L; L('w', wave.__file__).get_data(wave.__file__)"):
    before = len(watch.heard)
    exec(compile(cell, f"<answer {cell[:12]}>", "exec"), globals())
    print(sorted({line.split(": ")[1] for line in watch.heard[before:]}))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), str(tmp_path)])}
    command = [sys.executable, "-B", "-c", code]  # -B: nothing is compiled into a folder, which would be heard, too
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines() == ["[]", *["['opens a file (open)']"] * 3]


WORK = """
import threading, time
from concurrent.futures import ThreadPoolExecutor

import joblib
from tqdm import tqdm


def work(seconds=0.3):
    while time.thread_time() < seconds:
        pass


class Bar(tqdm):
    monitor_interval = 0.1
"""
PROBED = """
import sys
from helpers.course.kernel.other_threads import Elsewhere
from helpers.course.kernel.watch import Watch

watch, names = Watch(), {}
exec(compile(sys.argv[1], "<answer step>", "exec"), names)
if "early" in sys.argv[2]:
    exec(compile("early = ThreadPoolExecutor(1); early.submit(int).result()", "<answer step>", "exec"), names)
elsewhere = Elsewhere(watch, sys.argv[3])
exec(compile(sys.argv[2], "<answer step>", "exec"), names)
print(elsewhere.worked())
"""


@pytest.mark.parametrize(
    ("asked", "device", "told"),
    [
        ("t = threading.Thread(target=int); t.start(); t.join()", "cuda", True),
        ("joblib.Parallel(2, backend='threading')(joblib.delayed(int)() for _ in range(2))", "cpu", True),
        ("early.submit(work).result()", "cpu", True),
        ("early.submit(work).result()", "cuda", False),  # there the backward pass is on another thread, too
        ("early.submit(int).result()", "cpu", False),
        ("[time.sleep(0.02) for _ in Bar(range(20))]", "cpu", False),
        ("work()", "cpu", False),
    ],
)
def test_work_on_other_threads_is_told(asked, device, told):
    command = [sys.executable, "-c", PROBED, WORK, asked, device]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{told}\n"


@pytest.mark.parametrize("kind", [TorchFunctionMode, TorchDispatchMode])
def test_modes_are_left_and_named(kind):
    class StillHere(kind):
        pass

    StillHere().__enter__()
    assert leave_modes() == ["operations by a mode (StillHere)"]
    assert leave_modes() == []


def test_a_fingerprint_changes_with_an_element_and_with_the_order():
    data = torch.randn(5, 7)
    other = data.clone()
    other[2, 3] += 0.01
    assert fingerprint(data, data.long()) == fingerprint(data.clone(), data.long())
    assert fingerprint(data) != fingerprint(other)
    assert fingerprint(data) != fingerprint(data.flip(0))


def test_only_plain_tensors_are_believed():
    for tensor in (torch.ones(2), nn.Parameter(torch.ones(2))):
        assert plain(tensor) is tensor
    with pytest.raises(TypeError, match="this is a Subclass"):
        plain(torch.ones(2).as_subclass(Subclass))


def test_other_data_are_told_before_anything_else():
    expected = {"digits": [1, 2], "fp32": {"measured": 0.9}}
    assert AccuracyHolds.judge(expected | {"digits": [1, 3]}, expected) == OTHER_DATA
    expected = {"texts": [1, 2], "before": 2.7}
    assert LearnsTheNewText.judge(expected | {"texts": [2, 2]}, expected) == OTHER_DATA
    assert LearnsTheNewText.judge(expected | {"before": 5.5}, expected) == OTHER_DATA
