"""`python -m helpers autopsy`: whose the memory was, what grew, what lay in pieces, in files that a GPU has written."""

import io
import json
import pickle

from helpers.__main__ import main
from helpers.virtual_gpu.autopsy.cli import reports_of
from helpers.virtual_gpu.autopsy.message import read_message

import pytest

MiB, GiB = 2**20, 2**30
TORCH = "/venv/lib/python3.12/site-packages/torch"
ME = "/home/me/train.py"
MODEL = ("_apply", f"{TORCH}/nn/modules/module.py", 900)
CALL = ("_call_impl", f"{TORCH}/nn/modules/module.py", 1751)
ENGINE = ("_engine_run_backward", f"{TORCH}/autograd/graph.py", 823)
CPP = [
    ("torch::CapturedTraceback::gather(bool, bool, bool)", "??", 0),
    ("at::empty_cuda", "/pytorch/aten/src/ATen/cuda/EmptyTensor.cpp", 111),
]


def stack(*frames, cpp=False):
    return [{"name": n, "filename": f, "line": at} for n, f, at in [*(CPP if cpp else ()), *frames]]


class Recorder:
    """Writes the trace and the segments that CUDA's allocator would have."""

    def __init__(self, cpp):
        self.trace, self.alive, self.next, self.cpp = [], {}, 1 << 30, cpp

    def alloc(self, size, *frames):
        address = self.next
        self.next += size
        self.alive[address] = size, stack(*frames, cpp=self.cpp)
        self._event("alloc", address, size, self.alive[address][1])
        return address

    def free(self, address, *frames):
        size, _ = self.alive.pop(address)
        for action in ("free_requested", "free_completed"):
            self._event(action, address, size, stack(*frames, cpp=self.cpp))

    def _event(self, action, address, size, frames):
        now = len(self.trace)
        event = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": now}
        self.trace.append(event | {"frames": frames})

    def snapshot(self, gaps=(), **segment):
        blocks = [
            {"address": address, "size": size, "requested_size": size, "state": "active_allocated", "frames": frames}
            for address, (size, frames) in self.alive.items()
        ]
        blocks += [{"address": 1 << 50, "size": size, "state": "inactive", "frames": []} for size in gaps]
        whole = {"device": 0, "address": 1 << 30, "total_size": sum(block["size"] for block in blocks)}
        return {"segments": [whole | {"blocks": blocks} | segment], "device_traces": [self.trace]}


def training(cpp, leak=0, steps=5):
    """Return the recorder of a program of 1 GiB of weights that keeps `leak` bytes of each step."""
    gpu = Recorder(cpp)
    gpu.alloc(GiB, ("convert", MODEL[1], 1), MODEL, ("cuda", MODEL[1], 2), ("<module>", ME, 10))
    for step in range(steps):
        activation = gpu.alloc(300 * MiB, ("forward", f"{TORCH}/nn/modules/linear.py", 134), CALL, ("loss", ME, 20))
        if leak:
            gpu.alloc(leak, ("forward", f"{TORCH}/nn/modules/loss.py", 9), CALL, ("loss", ME, 23))
        gradient = gpu.alloc(GiB, ENGINE, ("backward", f"{TORCH}/_tensor.py", 600), ("<module>", ME, 30))
        gpu.free(activation, ENGINE, ("<module>", ME, 30))
        if step == 0:
            gpu.alloc(2 * GiB, ("_init_group", f"{TORCH}/optim/adamw.py", 80), ("<module>", ME, 31))
        scratch = gpu.alloc(100 * MiB, ("_multi_tensor_adam", f"{TORCH}/optim/adam.py", 600), ("<module>", ME, 31))
        gpu.free(scratch, ("_multi_tensor_adam", f"{TORCH}/optim/adam.py", 600), ("<module>", ME, 31))
        for _ in range(60):  # what happens between two optimizer steps
            gpu.free(gpu.alloc(512, CALL, ("loss", ME, 21)), ("loss", ME, 21))
        if step < steps - 1:
            gpu.free(gradient, ("zero_grad", f"{TORCH}/optim/optimizer.py", 1000), ("<module>", ME, 32))
    return gpu


@pytest.fixture
def report(tmp_path):
    def write(snapshot):
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(pickle.dumps(snapshot))
        (found,) = reports_of(str(path))
        return found

    return write


@pytest.mark.parametrize("cpp", [False, True], ids=["python frames", "all frames"])
def test_it_names_the_owners_by_category_and_line(report, cpp):
    found = report(training(cpp).snapshot())
    assert found.categories == {"optimizer state": 2 * GiB, "parameters": GiB, "gradients": GiB}
    assert found.lines == {f"{ME}:31": 2 * GiB, f"{ME}:10": GiB, f"{ME}:30": GiB}
    assert found.growing == []
    assert found.causes == []
    assert any("8-bit optimizer" in str(cure) for cure in found.cures)


def test_checkpointing_is_advised_to_those_that_do_without(report):
    def advice(*outside):
        gpu = Recorder(cpp=False)
        gpu.alloc(GiB, ("forward", f"{TORCH}/nn/modules/linear.py", 134), CALL, *outside, ("loss", ME, 20))
        return " ".join(str(cure) for cure in report(gpu.snapshot()).cures)

    assert "checkpointing" in advice()
    used = advice(("checkpoint", f"{TORCH}/utils/checkpoint.py", 501))
    assert "half the batch" in used
    assert "checkpointing" not in used


@pytest.mark.parametrize("cpp", [False, True], ids=["python frames", "all frames"])
def test_it_finds_what_grows(report, cpp):
    found = report(training(cpp, leak=50 * MiB).snapshot())
    (growth,) = found.growing
    assert (growth.line, growth.a_step, growth.in_all, growth.blocks) == (f"{ME}:23", 50 * MiB, 250 * MiB, 5)
    assert "leak" in found.causes[0]
    assert f"{ME}:23" in found.causes[0]


def test_without_an_optimizer_a_leak_is_found_too(report):
    gpu = Recorder(cpp=False)
    for _ in range(9):
        gpu.alloc(MiB, CALL, ("evaluate", ME, 50))
        gpu.free(gpu.alloc(8 * MiB, CALL, ("evaluate", ME, 51)), ("evaluate", ME, 51))
    assert [growth.line for growth in report(gpu.snapshot()).growing] == [f"{ME}:50"]


def test_it_tells_fragmentation_from_a_full_gpu(report):
    def refused(gaps, **segment):
        gpu = training(cpp=False)
        gpu.trace.append(
            {"action": "oom", "size": GiB, "device_free": 10 * MiB, "frames": stack(CALL, ("loss", ME, 20))}
        )
        return report(gpu.snapshot(gaps, **segment)).causes

    pieces = refused([400 * MiB] * 4)
    assert f"{ME}:20 asked for 1.00 GiB, but only 10.00 MiB was free." in pieces[0]
    assert "Fragmentation: 1.56 GiB is unused" in pieces[1]
    assert "expandable_segments:True" in pieces[1]
    assert len(refused([100 * MiB])) == 1
    assert len(refused([400 * MiB] * 4, is_expandable=True)) == 1


def test_blocks_from_before_the_trace_count(report):
    gpu = training(cpp=False)
    gpu.trace.clear()
    found = report(gpu.snapshot())
    assert sum(found.categories.values()) == 4 * GiB
    old = gpu.snapshot()
    for block in old["segments"][0]["blocks"]:  # as PyTorch 2.0 wrote it
        block["history"] = [{"addr": 0, "real_size": block["size"], "frames": block.pop("frames")}]
    assert report(old).lines == found.lines
    assert report(old["segments"]).lines == found.lines


NEW = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.15 GiB "
    "of which 1.19 GiB is free. Process 12 has 20.00 GiB memory in use. Including non-PyTorch memory, this process has "
    "57.96 GiB memory in use. Of the allocated memory 52.10 GiB is allocated by PyTorch, with 48.00 MiB allocated in "
    "private pools (e.g., CUDA Graphs), and 4.66 GiB is reserved by PyTorch but unallocated. If reserved but ..."
)
OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 15.90 GiB total capacity; 14.93 GiB already "
    "allocated; 15.81 MiB free; 15.02 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory ..."
)
APPLE = (
    "RuntimeError: MPS backend out of memory (MPS allocated: 17.00 GB, other allocations: 384.00 KB, max allowed: "
    "18.13 GB). Tried to allocate 2.00 GB on private pool."
)
TRACEBACK = f'''Traceback (most recent call last):
  File "{ME}", line 31, in <module>
    optimizer.step()
  File "{TORCH}/optim/adamw.py", line 80, in _init_group
'''


@pytest.mark.parametrize(
    ("text", "figures", "others", "unused"),
    [
        (NEW, (1, 2 * GiB, round(79.15 * GiB)), 20 * GiB, round(4.66 * GiB)),
        (OLD, (0, 20 * MiB, round(15.9 * GiB)), None, round(15.02 * GiB) - round(14.93 * GiB)),
        (APPLE, (0, 2 * GiB, round(18.13 * GiB)), None, None),
    ],
    ids=["2.3 and later", "before", "Apple"],
)
def test_messages_of_all_wordings_are_read(text, figures, others, unused):
    found = read_message(f"a line before\n{text}")
    assert (found.gpu, found.asked, found.total) == figures
    assert found.others == others or abs(found.others - others) < MiB
    assert found.unused == unused


def test_a_pasted_message_is_explained(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO(TRACEBACK + NEW))
    assert main(["autopsy", "-"]) == 0
    out = capsys.readouterr().out
    assert f"The request came from {ME}:31, in _init_group." in out
    assert "Other processes hold 20.00 GiB" in out
    assert "Fragmentation" in out
    assert "the optimizer's step" in out


def test_the_virtual_gpus_own_message_is_read():
    from helpers.virtual_gpu import virtual_gpu

    import torch

    with virtual_gpu("rtx-3060"), pytest.raises(torch.OutOfMemoryError) as error:
        torch.empty(2**35, dtype=torch.uint8, device="cuda")
    found = read_message(str(error.value))
    assert (found.asked, found.allocated, found.unused) == (2**35, 0, 0)


def test_json_has_the_figures(tmp_path, capsys):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(training(cpp=False).snapshot()))
    assert main(["autopsy", "--json", str(path)]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["figures"]["allocated"] == 4 * GiB


class Hostile:
    def __reduce__(self):
        return print, ("run",)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pickle.dumps(Hostile()), "builtins.print, which no snapshot does"),
        (pickle.dumps({"segments": []}), "an empty snapshot"),
        (pickle.dumps({"segments": [{"blocks": [{}]}]}), "not a memory snapshot that PyTorch writes"),
        (pickle.dumps([1, 2]), "not a memory snapshot"),
        (pickle.dumps("text")[:-3], "not a memory snapshot"),
        (b"all is well", "has no out-of-memory message"),
        (b"", "has no out-of-memory message"),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, content, words):
    path = tmp_path / "file"
    path.write_bytes(content)
    assert main(["autopsy", str(path)]) == 2
    out, err = capsys.readouterr()
    assert words in err
    assert (len(err.strip().splitlines()), out) == (1, "")


def test_a_file_that_is_not_there(capsys):
    assert main(["autopsy", "nowhere.pickle"]) == 2
    assert "nowhere.pickle cannot be read" in capsys.readouterr().err
