"""Kinds of programs that a dry run follows to their end, each with the peak of the same program computed."""

import os
import subprocess
import sys
import textwrap
import warnings

from helpers.__main__ import main
from helpers.virtual_gpu.install import install, uninstall
from helpers.virtual_gpu.machine import Machine
from helpers.virtual_gpu.waits import Waits

import pytest
import torch

from .test_command import in_a_process, lines_with

BEGIN = """
    import io, os, shutil, sys
    import torch
    from torch import nn
    from torch.nn import functional as F

    model = nn.Linear(64, 64).cuda()
    optimizer = torch.optim.Adam(model.parameters())

    def step(x=None):
        y = model(torch.ones(4, 64, device="cuda") if x is None else x)
        y.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.fixture
def dry_run(tmp_path, monkeypatch, capsys):
    """Run a script in an empty folder; return its exit code, stdout and stderr."""
    script = tmp_path / "train.py"
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def run(text, *options):
        script.write_text(textwrap.dedent(BEGIN) + textwrap.dedent(text))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = main(["dry-run", "--gpu", "t4", "--steps", "9", *options, str(script)])
        assert os.listdir(folder) == []
        return code, *capsys.readouterr()

    return run


SAVES = {
    "a best model": """
        step()
        torch.save(model.state_dict(), "best.pt")
        before = torch.cuda.memory_allocated()
        state = torch.load("best.pt")
        print(state["weight"].device, torch.cuda.memory_allocated() - before, sorted(state))
        model.load_state_dict(state)
    """,
    "a checkpoint to resume from": """
        step()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 7}, "last.tmp")
        os.replace("last.tmp", "last.pt")
        shutil.copyfile("last.pt", "best.pt")
        print(sorted(os.listdir()), os.path.isfile("best.pt"), os.path.getsize("best.pt") > 3 * 64 * 64 * 4)
        state = torch.load("best.pt", map_location="cpu", weights_only=True)
        optimizer.load_state_dict(state["optimizer"])
        print(state["epoch"], state["model"]["weight"].device, int(state["optimizer"]["state"][0]["step"]))
        os.remove("last.pt")
        print(sorted(os.listdir()))
    """,
    "values, and weights that are tied": """
        step()
        buffer = io.BytesIO()
        torch.save([torch.arange(5), model, model.weight], buffer)
        buffer.seek(0)
        ids, again, weight = torch.load(buffer, weights_only=False)
        print(ids.tolist(), type(again).__name__, again.weight is weight, weight.requires_grad)
    """,
}
PRINTED = {
    "a best model": ["cuda:0 16896 ['bias', 'weight']"],
    "a checkpoint to resume from": ["['best.pt', 'last.pt'] True True", "7 cpu 1", "['best.pt']"],
    "values, and weights that are tied": ["[0, 1, 2, 3, 4] Linear True True"],
}


@pytest.mark.parametrize("kind", SAVES)
def test_what_a_script_saves_it_can_load(dry_run, kind):
    code, out, err = dry_run(SAVES[kind])
    assert code == 0, err
    assert [line for line in PRINTED[kind] if line not in out.splitlines()] == []
    assert "torch.save: nothing is written" in out


def test_a_file_that_was_not_saved_is_missing(dry_run):
    code, _, err = dry_run("""
        step()
        torch.save(model.state_dict(), "one.pt")
        torch.load("other.pt")
    """)
    assert code == 1
    assert "FileNotFoundError" in err
    assert "other.pt" in err


def test_a_graph_is_captured_and_replayed(dry_run):
    code, out, err = dry_run("""
        x = torch.ones(4, 64, device="cuda")
        step(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            print("capturing", torch.cuda.is_current_stream_capturing())
            model(x).sum().backward()
        for _ in range(3):
            x.copy_(torch.ones(4, 64))
            graph.replay()
            optimizer.step()
        print("capturing", torch.cuda.is_current_stream_capturing())
        print(torch.cuda.make_graphed_callables(model, (x,)) is model)
    """)
    assert code == 0, err
    assert lines_with(out, "capturing") == ["capturing True", "capturing False"]
    assert "True" in out.splitlines()
    assert lines_with(out, "CUDA graph: what it captures runs once")


def test_flex_attention_takes_the_memory_of_its_kernel(dry_run):
    code, out, err = dry_run("""
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 2048, 2048, device="cuda")
        attend = torch.compile(flex_attention)
        q, k, v = (torch.ones(1, 8, 2048, 64, device="cuda", dtype=torch.half, requires_grad=True) for _ in range(3))
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = attend(q, k, v, block_mask=mask)
        print("grew", (torch.cuda.max_memory_allocated() - before) // 2**20)
        out.sum().backward()
        step()
    """)
    assert code == 0, err
    assert int(lines_with(out, "grew")[0].split()[1]) < 8  # the scores of all pairs would be 64 MiB
    assert lines_with(out, "flex_attention: the memory of its compiled kernel")


def test_the_batch_of_a_program_without_batches_is_not_zero(dry_run):
    code, out, err = dry_run("""
        x = torch.ones(4, 64, device="cuda")
        for i in range(3):
            scale = torch.tensor(float(i)).cuda()
            step(x * scale)
    """)
    assert code == 0, err
    assert "Largest batch" not in out
    assert "Warning" not in err


STAYS = """
    import subprocess, sys
    import torch

    print("child", subprocess.Popen([*COMMAND]).pid, flush=True)
    model = torch.nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    while True:
        model(torch.ones(2, 4, device="cuda")).sum().backward()
        optimizer.step()
"""


def test_processes_of_a_run_that_is_cut_are_ended(tmp_path):
    command = repr([sys.executable, "-c", "import time; time.sleep(600)"])
    (tmp_path / "train.py").write_text(textwrap.dedent(STAYS.replace("[*COMMAND]", command)))
    done = in_a_process(tmp_path, "train.py")
    assert done.returncode == 0, done.stderr
    child = lines_with(done.stdout, "child")[0].split()[1]
    states = subprocess.run(["ps", "-o", "stat=", "-p", child], capture_output=True, text=True).stdout.split()
    assert states in ([], ["Z"])


def packed():
    """A recurrent network over sequences of several lengths, and a CTC loss whose lengths are on the CPU."""
    lengths, x = torch.tensor([5, 9, 7]), torch.ones(3, 9, 16, device="cuda")
    weight = torch.nn.Parameter(torch.ones(16, 8, device="cuda"))
    rows = torch.nn.utils.rnn.pack_padded_sequence(x @ weight, lengths, batch_first=True, enforce_sorted=False)
    assert rows.data.shape == (21, 8)
    assert not rows.batch_sizes.is_cuda
    padded, found = torch.nn.utils.rnn.pad_packed_sequence(rows)
    assert (padded.shape, found.tolist()) == ((9, 3, 8), [5, 9, 7])
    targets = torch.ones(3, 2, dtype=torch.int64, device="cuda")
    torch.nn.functional.ctc_loss(padded.log_softmax(-1), targets, found, torch.tensor([2, 2, 2])).backward()


def sparse():
    """A graph as a sparse matrix in every layout, and a matrix that is read where another one is not zero."""
    edges, weight = torch.arange(8, device="cuda").view(2, 4), torch.nn.Parameter(torch.ones(8, 200, device="cuda"))
    values = (weight * 2).mean(1)[:4]
    graph = torch.sparse_coo_tensor(edges, values, (8, 8)).coalesce()
    torch.sparse.mm(graph, weight).sum().backward()
    rows = graph.detach().to_sparse_csr()
    assert (rows.values().is_cuda, rows.crow_indices().is_cuda, graph.values().is_cuda) == (True, True, True)
    assert (rows @ weight.detach()).is_cuda
    assert (weight @ weight.T).detach().sparse_mask(graph.detach()).values().shape == (4,)


def functions():
    """Derivatives of derivatives with `torch.func`, whose tensors wrap others."""
    x = torch.ones(64, device="cuda")
    assert torch.func.hessian(lambda row: (row**3).sum())(x).shape == (64, 64)


def closeness():
    """Values that are compared, and marks for a profiler."""
    weight = torch.nn.Parameter(torch.ones(64, 64, device="cuda"))
    assert torch.allclose(weight * 2, weight * 2)
    torch.cuda.nvtx.range_push("step")
    torch.cuda.profiler.start()
    torch.cuda.profiler.stop()
    torch.cuda.nvtx.range_pop()


def nested():
    """Sequences of several lengths in one tensor, through a layer with weights."""
    layer = torch.nn.Linear(16, 8, device="cuda")
    rows = torch.nested.nested_tensor([torch.ones(n, 16) for n in (5, 9)], layout=torch.jagged, device="cuda")
    layer(rows).values().sum().backward()
    assert layer.weight.grad.is_cuda


def grouped():
    """The experts of a layer in one operation, in FP32."""
    x = torch.ones(16, 32, device="cuda")
    ends = torch.tensor([8, 16], dtype=torch.int32, device="cuda")
    assert torch._grouped_mm(x, torch.ones(2, 32, 16, device="cuda"), offs=ends).dtype is torch.float32


def lazy():
    """A module that learns its width from the first batch, after it has moved."""
    for layer in (torch.nn.LazyLinear(8).cuda(), torch.nn.LazyLinear(8).to("cuda")):
        layer(torch.ones(4, 64, device="cuda")).sum().backward()
        assert layer.weight.grad.is_cuda


def copied():
    """Tensors that are pickled."""
    import pickle

    assert pickle.loads(pickle.dumps(torch.ones(64, 64, device="cuda"))).is_cuda


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", [packed, sparse, functions, closeness, nested, grouped, lazy, copied])
def test_a_dry_program_has_the_peak_of_the_computed_one(program):
    peaks = []
    for dry in (True, False):
        install(Machine.named("a100-80gb"), Waits() if dry else None)
        try:
            program()
            peaks.append(torch.cuda.max_memory_allocated())
        finally:
            uninstall()
    assert peaks[0] == peaks[1] > 0
