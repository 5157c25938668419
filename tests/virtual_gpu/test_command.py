"""`python -m helpers dry-run`: the report, the script's exit code, one clear line for bad input."""

import io
import json
import os
import subprocess
import sys
import textwrap
import zipfile

from helpers.__main__ import main
from helpers.core.files import ROOT
from helpers.virtual_gpu.autopsy.cli import reports_of

import pytest
import torch

FOLDER = str(ROOT / "helpers" / "core")
GPU_FILES = ROOT / "helpers" / "planner" / "hardware"
TRAINS = """
    import sys
    import torch
    from torch import nn

    width = int(sys.argv[1])
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(20):
        x, y = torch.randn(64, width), torch.randint(10, (64,))
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if not torch.isfinite(loss) or torch.isnan(loss).any():
            sys.exit("the loss is not finite")
        print("loss", loss.item())
    print("the end")
"""


@pytest.fixture
def dry_run(tmp_path, capsys):
    """Run a script and return (exit code, stdout, stderr); the lines of the script itself are there, too."""

    def run(text, *arguments, options=("--gpu", "t4")):
        script = tmp_path / "train.py"
        script.write_text(textwrap.dedent(text))
        argv = list(sys.argv)
        code = main(["dry-run", *options, str(script), *arguments])
        assert sys.argv == argv
        return code, *capsys.readouterr()

    return run


def lines_with(text, *words):
    return [line for line in text.splitlines() if all(word in line for word in words)]


def test_a_script_runs_for_three_steps_and_is_reported(dry_run):
    code, out, err = dry_run(TRAINS, "512")
    assert code == 0, err
    assert out.count("loss") >= 2
    assert "the end" not in out
    assert lines_with(out, "Fits:", "t4-16gb")
    assert lines_with(out, "optimizer state")
    assert lines_with(out, "train.py:17", "value of one element")
    assert lines_with(out, "Forecast:", "s per step")


def test_json_has_the_bytes_of_the_arithmetic(dry_run):
    code, out, _ = dry_run(TRAINS, "1024", options=("--json", "--gpu", "rtx-4090", "--steps", "2"))
    report = json.loads(out.splitlines()[-1])
    weights = sum(512 * -(-4 * n // 512) for n in (1024 * 1024, 1024, 10 * 1024, 10))
    held = report["at_peak"]["categories"]
    assert (code, report["finished_steps"], report["gpu"]) == (0, 2, "rtx-4090-24gb")
    assert held["parameters"] == weights
    assert held["optimizer state"] == 2 * weights
    assert sum(held.values()) == report["peak_allocated_bytes"]
    assert report["fits"]["rtx-4090-24gb"] is True
    low, high = report["reserved_bytes"]
    assert report["peak_allocated_bytes"] <= low < high


def test_out_of_memory_is_raised_at_the_line_in_cudas_words(dry_run):
    code, out, err = dry_run(TRAINS, "70000")
    assert code == 1
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 18.25 GiB. GPU 0 has a total capacity" in err
    assert "model = nn.Sequential(" in err
    code, out, err = dry_run(TRAINS, "40000")
    assert code == 1
    assert lines_with(err, "Tried to allocate 5.96 GiB")
    assert "loss.backward()" in err or "optimizer.step()" in err
    assert "site-packages" not in err
    assert err.count("  File ") == 1
    assert lines_with(out, "Runs out of memory at", "the program asks for 5.96 GiB, so it needs at least")
    assert not lines_with(out, "Fits:")
    assert not lines_with(out, "Peak:")
    assert lines_with(out, "Memory when it ran out")
    assert lines_with(out, ": saves up to")
    assert lines_with(out, "8-bit optimizer") or lines_with(out, "inside the backward pass")


def test_a_program_that_catches_it_goes_on(dry_run):
    code, out, _ = dry_run(
        """
        import torch
        try:
            torch.empty(2**36, device="cuda")
        except torch.OutOfMemoryError:
            print("caught")
        x = torch.zeros(3, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([x], lr=1)
        x.sum().backward()
        optimizer.step()
        """
    )
    assert code == 0
    assert "caught" in out
    assert lines_with(out, "256.00 GiB did not fit, and the program continued")
    assert lines_with(out, "Peak:")
    assert not lines_with(out, "Fits:")


SAVES = """
    import sys
    import torch
    from torch import nn

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, gradient):
            return 2 * gradient

    class Twice(nn.Linear):
        def forward(self, x):
            return Doubled.apply(super().forward(x))

    dtype = getattr(torch, sys.argv[2])
    model = nn.Sequential(*(Twice(4096, 4096) for _ in range(8))).cuda().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.set_grad_enabled(sys.argv[1] == "train"):
        x = torch.zeros(3 * 2**17, 4096, dtype=dtype, device="cuda")
        loss = model(x).sum()
    loss.backward()
"""


def test_what_an_error_in_the_forward_pass_frees_was_saved_for_the_backward_pass(dry_run):
    options = ("--gpu", "4080", "--json")

    def report(*arguments):
        code, out, _ = dry_run(SAVES, *arguments, options=options)
        found = json.loads(out.splitlines()[-1])
        assert (code, found["out_of_memory"], found["at_peak"]["phase"]) == (1, True, "forward")
        return found["at_peak"]["categories"], [cure["change"] for cure in found["cures"]]

    held, cures = report("train", "bfloat16")
    assert held["activations"] >= 4 * 2**30
    assert "temporaries" not in held
    assert any("checkpointing" in cure for cure in cures)
    assert not any("BF16" in cure for cure in cures)
    held, cures = report("train", "float32")
    assert any("BF16" in cure for cure in cures)
    held, cures = report("evaluate", "float32")
    assert "activations" not in held
    assert not any("checkpointing" in cure for cure in cures)


CHECKPOINTS = """
    import sys
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    class Block(nn.Sequential):
        def forward(self, x):
            kind = sys.argv[1]
            return super().forward(x) if kind == "none" else checkpoint(super().forward, x, use_reentrant=kind == "yes")

    model = nn.Sequential(*(Block(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)) for _ in range(4))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for rows in (2, int(sys.argv[2])):
        x = torch.zeros(rows, 1024).cuda().requires_grad_()
        model(x).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("ends", ["after a step", "in the forward pass"])
@pytest.mark.parametrize("reentrant", ["none", "yes", "no"])
def test_checkpointing_is_advised_to_scripts_that_do_without(dry_run, reentrant, ends):
    rows = 2**13 if ends == "after a step" else 2**19
    code, out, _ = dry_run(CHECKPOINTS, reentrant, str(rows), options=("--gpu", "t4", "--json"))
    assert code == (ends == "in the forward pass")
    cures = " ".join(cure["change"] for cure in json.loads(out.splitlines()[-1])["cures"])
    assert "half the batch" in cures
    assert ("checkpointing" in cures) == (reentrant == "none")


def test_strict_stops_at_the_first_value(dry_run):
    code, _, err = dry_run(TRAINS, "2048", options=("--strict",))
    assert code == 2
    assert lines_with(err, "train.py:15", "a value that a dry run does not have")


def test_strict_allows_what_no_value_depends_on(dry_run):
    code, out, err = dry_run(
        """
        import torch

        model = torch.compile(torch.nn.Linear(8, 8).cuda())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.ones(2, 8).cuda()).sum().backward()
            optimizer.step()
            torch.save(model.state_dict(), "nowhere.pt")
        """,
        options=("--strict",),
    )
    assert code == 0, err
    assert lines_with(out, "train.py:9", "torch.save")


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("raise ValueError('mine')", 1, "ValueError: mine"),
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('no data')", 1, "no data"),
        ("print('nothing')", 2, "without an optimizer step"),
        ("x = (", 1, "SyntaxError"),
    ],
)
def test_a_script_has_its_own_end(dry_run, text, code, words):
    found, _, err = dry_run(text)
    assert found == code
    assert words in err


def test_before_the_first_step_no_verdict_is_given(dry_run):
    text = "import torch\nw = torch.ones(1024, device='cuda')\n"
    code, out, err = dry_run(text + "open('my_data.jsonl')\n")
    assert (code, "Fits" in out, "whether it fits is unknown" in out) == (1, False, True)
    assert "--fake-data" in err
    _, out, err = dry_run(text + "import no_such_package.inside\n")
    assert "whether it fits is unknown" in out
    assert f"-m pip install no_such_package torch=={torch.__version__.partition('+')[0]}\n" in err
    code, out, _ = dry_run(text)
    assert (code, "Fits" in out) == (2, True)


def test_its_own_traceback_names_its_own_lines_alone(dry_run):
    _, _, err = dry_run("import torch\ntorch.ones(2, device='cuda') @ torch.ones(3, device='cuda')\n")
    assert "virtual_gpu" not in err
    assert 'train.py", line 2' in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no_such_file.py"], "There is no file no_such_file.py."),
        (["no_such_file"], "To run a module, put -m before its name"),
        (["pyproject.toml"], "Plan it with `python -m helpers plan --from pyproject.toml`"),
        ([FOLDER], "is a folder. Give the training script in it"),
        (["torchrun", "train.py"], "without torchrun. --gpus N runs one rank of N"),
        (["-m", __file__], "is a file, not a module. Leave out -m"),
        (["--gpu", "no_such_file.toml", "x.py"], "no_such_file.toml cannot be read as the file of a GPU"),
        (["--gpu", "apple", "x.py"], "'apple' is not in the catalog"),
        (["--gpu", "rtx-9999", "x.py"], "'rtx-9999' is not in the catalog. `plan --list` shows all GPUs"),
        (["--steps", "0", "x.py"], "--steps, --gpus and --nodes must be at least 1"),
        (["-m", "no_such_module_here"], "no_such_module_here is not a module"),
        (["--gpus", "4", "--rank", "4", __file__], "--rank 4 is not one of 4"),
        (["--timeline", "nowhere/x.svg", __file__], "nowhere is not a folder"),
        (["--timeline", "x.txt", __file__], "--timeline writes .svg, .png and .pdf"),
        (["--trace", FOLDER, __file__], "is a folder. Give the name of a file."),
        (["--trace", __file__, __file__], "is the script: it would be overwritten."),
        (["--trace", "a.json", "--snapshot", "./a.json", __file__], "is named twice."),
    ],
)
def test_bad_input_is_one_line(capsys, arguments, words):
    assert main(["dry-run", *arguments]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("lab.ipynb", b'{"cells": []}', "lab.ipynb is a notebook. Run its cells in a `with virtual_gpu(...)` block"),
        ("train.sh", b"python train.py", "train.sh is a shell script. Give the Python script that it starts"),
        ("model.py", b"import torch\0", "model.py is not a Python script: it holds binary data"),
    ],
)
def test_a_file_of_another_kind_is_one_line(tmp_path, monkeypatch, capsys, name, content, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(content)
    assert main(["dry-run", name]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.strip().splitlines())) == ("", 1)
    assert words in err


@pytest.mark.parametrize("has_main", [True, False])
def test_an_archive_runs_if_it_holds_a_program(tmp_path, capsys, has_main):
    with zipfile.ZipFile(tmp_path / "app.pyz", "w") as archive:
        archive.writestr("__main__.py" if has_main else "other.py", "print('inside')")
    assert main(["dry-run", str(tmp_path / "app.pyz")]) == 2
    out, err = capsys.readouterr()
    assert ("inside" in out) == has_main
    assert ("binary data" in err) != has_main


def test_a_gpu_can_be_described_in_a_file(dry_run, tmp_path):
    sheet = (GPU_FILES / "t4-16gb.toml").read_text()
    (tmp_path / "mine.toml").write_text(sheet.replace('name = "t4-16gb"', 'name = "mine"'))
    code, out, err = dry_run(TRAINS, "64", options=("--gpu", str(tmp_path / "mine.toml"), "--json"))
    assert code == 0, err
    report = json.loads(out.splitlines()[-1])
    assert (report["gpu"], report["grades"]["mine"]) == ("mine", report["grades"]["t4-16gb"])
    assert report["seconds"][1] > 0


FORKS = """
    import os
    import torch

    child = os.fork()
    model = torch.nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(9):
        model(torch.ones(2, 4, device="cuda")).sum().backward()
        optimizer.step()
    if child:
        os.waitpid(child, 0)
"""


def test_the_first_of_two_processes_reports(tmp_path):
    (tmp_path / "train.py").write_text(textwrap.dedent(FORKS))
    done = in_a_process(tmp_path, "train.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("Dry run on a virtual t4-16gb") == 1
    assert lines_with(done.stdout, "train.py:5", "another process: not followed")


def in_a_process(folder, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "helpers", "dry-run", "--gpu", "t4", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


STEPS = """
    import os, sys, threading
    import torch

    model = torch.nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step():
        model(torch.ones(2, 4, device="cuda")).sum().backward()
        optimizer.step()
"""
GOES_ON = {
    "a thread fills a queue": """
        import queue
        rows = queue.Queue(2)
        def fill():
            while True:
                rows.put(1)
        threading.Thread(target=fill).start()
        while rows.get():
            step()
    """,
    "a process fills a queue": """
        import multiprocessing
        context = multiprocessing.get_context("fork")
        rows = context.Queue(2)
        def fill():
            while True:
                rows.put(1)
        context.Process(target=fill).start()
        while rows.get():
            step()
    """,
    "a thread trains": """
        trained = threading.Event()
        def train():
            for _ in range(9):
                step()
            trained.set()
        threading.Thread(target=train).start()
        trained.wait()
    """,
    "every error is caught": """
        while True:
            try:
                step()
            except:
                pass
    """,
    "the process ends without Python": """
        step(), step()
        os._exit(0)
    """,
}


@pytest.mark.parametrize("kind", GOES_ON)
def test_what_a_script_leaves_running_does_not_keep_the_report_back(tmp_path, kind):
    (tmp_path / "train.py").write_text(textwrap.dedent(STEPS) + textwrap.dedent(GOES_ON[kind]))
    done = in_a_process(tmp_path, "--json", "train.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["finished_steps"] == (2 if "without" in kind else 3)


@pytest.mark.parametrize("code", [0, 3])
def test_a_script_that_ends_in_the_middle_of_a_step_is_reported(dry_run, code):
    end = f"step()\nmodel(torch.ones(2, 4, device='cuda'))\nsys.exit({code})"
    found, out, err = dry_run(textwrap.dedent(STEPS) + end)
    assert (found, err) == (code, "")
    assert lines_with(out, "(2)", "KiB")


def test_an_interrupted_script_is_reported(dry_run):
    code, out, err = dry_run(textwrap.dedent(STEPS) + "step()\nraise KeyboardInterrupt")
    assert code == 130
    assert err.startswith("Interrupted at ")
    assert err.endswith("train.py:12.\n")
    assert lines_with(out, "Peak:")


def test_a_script_may_come_from_stdin(monkeypatch, capsys):
    own = "\nassert __name__ == '__main__' and sys.argv == ['-', 'x']\nstep()"
    monkeypatch.setattr(sys, "stdin", io.StringIO(textwrap.dedent(STEPS) + own))
    assert main(["dry-run", "--gpu", "t4", "-", "x"]) == 0
    assert lines_with(capsys.readouterr().out, "<stdin>:9")


def test_the_report_is_printed_where_the_command_was_called(dry_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    own = "\nsys.stdout = open('log.txt', 'w')\nprint('own')\nos.chdir('elsewhere')\nstep(), sys.stdout.flush()"
    code, out, err = dry_run(textwrap.dedent(STEPS) + own, options=("--gpu", "t4", "--trace", "trace.json"))
    assert code == 0, err
    assert lines_with(out, "Peak:")
    assert (tmp_path / "log.txt").read_text() == "own\n"
    assert (tmp_path / "trace.json").is_file()


def test_a_file_that_cannot_be_written_costs_no_report(dry_run, tmp_path):
    own = "\nstep()\nos.mkdir(sys.argv[1])"
    place = str(tmp_path / "trace.json")
    code, out, err = dry_run(textwrap.dedent(STEPS) + own, place, options=("--gpu", "t4", "--trace", place))
    assert code == 2
    assert err == f"{place} cannot be written: Is a directory.\n"
    assert lines_with(out, "Peak:")


@pytest.mark.parametrize(("visible", "found"), [("3", 1), ("4,5", 2), ("4,5,6", 2)])
def test_a_script_may_name_gpus_of_its_own_machine(dry_run, monkeypatch, visible, found):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    own = "\nstep()\nprint('GPUs', torch.cuda.device_count())"
    code, out, err = dry_run(textwrap.dedent(STEPS) + own, options=("--gpu", "t4", "--gpus", "2"))
    assert code == 0, err
    assert f"GPUs {found}\n" in out


OLD = """
    import numpy
    import torch

    Tensor = torch.cuda.FloatTensor
    for made in (Tensor(4, 2).fill_(1.0), Tensor(numpy.ones((4, 2))), Tensor([[1, 2]]), torch.ones(2).type(Tensor)):
        assert made.type() == "torch.cuda.FloatTensor" and isinstance(made, Tensor), made
    assert Tensor(4, 2).shape == (4, 2) and Tensor((4, 2)).shape == (2,) and Tensor().shape == (0,)
    assert torch.cuda.LongTensor([1]).dtype == torch.int64 and not isinstance(torch.ones(2), Tensor)
    for kind in (torch.LongTensor, "torch.LongTensor"):
        assert made.type(kind).type() == "torch.LongTensor"
    assert made.type(torch.float16).type() == "torch.cuda.HalfTensor"
    torch.set_default_tensor_type("torch.cuda.DoubleTensor")
    assert torch.nn.Linear(2, 2).weight.type() == "torch.cuda.DoubleTensor"
    torch.set_default_tensor_type(torch.FloatTensor)
    assert torch.zeros(2).type() == "torch.FloatTensor"
    torch.set_default_tensor_type(Tensor)
    print("old")
"""


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
def test_types_may_name_dtype_and_device_at_once(dry_run):
    _, out, err = dry_run(OLD)
    assert "old\n" in out, err
    assert torch.zeros(2).type() == "torch.FloatTensor"
    assert not isinstance(torch.zeros(2), torch.cuda.FloatTensor)


IN_PROCESSES = """
    import multiprocessing
    import torch

    def train(rank):
        model = torch.nn.Linear(4, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(9):
            model(torch.ones(2, 4, device="cuda")).sum().backward()
            optimizer.step()

    process = multiprocessing.get_context("fork").Process(target=train, args=(0,))
    process.start()
    process.join()
"""


def test_a_script_that_trains_in_processes_of_its_own_is_told_so_in_one_line(tmp_path):
    (tmp_path / "train.py").write_text(textwrap.dedent(IN_PROCESSES))
    done = in_a_process(tmp_path, "train.py")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "ended without an optimizer step on the GPU" in line
    assert "starts a process at train.py:13, which a dry run does not follow" in line


def test_workers_of_a_data_loader_are_no_processes_of_the_script(dry_run):
    code, _, err = dry_run(
        """
        import torch
        from torch.utils.data import DataLoader

        print(sum(len(rows) for rows in DataLoader(torch.arange(8), num_workers=1)))
        """
    )
    assert (code, "follow" in err) == (2, False)


def test_own_options_after_the_script_are_warned_of_and_the_assumed_gpu_is_named(dry_run):
    code, out, err = dry_run(TRAINS, "64", "--gpu", "rtx-4099", "--width=3", options=())
    assert code == 0
    (warning,) = lines_with(err, "Warning:")
    assert "--gpu after" in warning
    assert "--width" not in warning
    assert lines_with(out, "Dry run on a virtual h100-80gb")
    assert lines_with(out, "No --gpu was given, so h100-80gb is assumed.")
    code, out, err = dry_run(TRAINS, "64")
    assert "Warning" not in err
    assert "No --gpu was given" not in out


def test_a_module_runs_by_its_name(tmp_path, monkeypatch, capsys):
    (tmp_path / "tiny_training.py").write_text(textwrap.dedent(TRAINS))
    monkeypatch.chdir(tmp_path)
    assert main(["dry-run", "-m", "tiny_training", "256"]) == 0
    assert "Peak:" in capsys.readouterr().out


BATCHED = """
    import sys
    import torch
    from torch import nn

    batch = int(sys.argv[1])
    model = nn.Sequential(nn.Embedding(512, 256), *(nn.Linear(256, 256) for _ in range(8)), nn.Linear(256, 512)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        x = torch.randint(512, (batch, 64))
        loss = nn.functional.cross_entropy(model(x.cuda()).flatten(0, 1), x.cuda().flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_the_largest_batch_is_where_the_memory_ends(dry_run):
    options = ("--json", "--gpu", "t4")
    code, out, _ = dry_run(BATCHED, "16", options=options)
    report = json.loads(out.splitlines()[-1])
    assert (code, report["batch"]) == (0, 16)
    largest = report["largest_batch"]
    assert largest["t4-16gb"] < largest["a100-40gb"] < largest["a100-80gb"]
    code, out, _ = dry_run(BATCHED, str(largest["t4-16gb"]), options=options)
    assert code == 0
    assert json.loads(out.splitlines()[-1])["fits"]["t4-16gb"]
    code, _, err = dry_run(BATCHED, str(largest["t4-16gb"] * 13 // 10), options=options)
    assert code == 1
    assert "CUDA out of memory" in err


def test_what_is_called_a_safe_batch_is_not_tight(dry_run):
    """The segments of a small program hold much that is free: its ratio says little of the larger one's."""
    options = ("--json", "--gpu", "t4")
    _, out, _ = dry_run(BATCHED, "16", options=options)
    report = json.loads(out.splitlines()[-1])
    safe = report["safe_batch"]["t4-16gb"]
    assert 16 <= safe <= report["largest_batch"]["t4-16gb"]
    _, out, _ = dry_run(BATCHED, str(safe), options=options)
    assert json.loads(out.splitlines()[-1])["grades"]["t4-16gb"] == "fits"
    _, out, _ = dry_run(BATCHED, "16")
    assert lines_with(out, "Largest batch (here 16), all else equal:", f"t4-16gb {safe:,}")


PYRAMID = """
    import sys
    import torch
    from torch import nn

    batch = int(sys.argv[1])
    sizes = [700, 900, 1100, 1300, 1500, 1700, 1900, 2100]
    layers = [nn.Linear(a, b).cuda() for a, b in zip(sizes, sizes[1:] + sizes[:1])]
    optimizer = torch.optim.SGD([p for layer in layers for p in layer.parameters()], 0.1)
    for _ in range(3):
        x = torch.randn(batch, 1024, sizes[0]).cuda()
        for layer in layers:
            x = nn.functional.gelu(layer(x))
        x.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_safe_batch_allows_for_the_pieces_of_the_larger_program(dry_run):
    """Blocks of many sizes leave more pieces in the larger run."""
    options = ("--json", "--gpu", "t4")
    _, out, _ = dry_run(PYRAMID, "60", options=options)
    report = json.loads(out.splitlines()[-1])
    safe, largest = report["safe_batch"]["t4-16gb"], report["largest_batch"]["t4-16gb"]
    assert safe < largest
    grades = []
    for batch in (safe - 2, largest):  # blocks and segments are rounded
        _, out, _ = dry_run(PYRAMID, str(batch), options=options)
        grades.append(json.loads(out.splitlines()[-1])["grades"]["t4-16gb"])
    assert grades[0] == "fits" != grades[1]
    _, out, _ = dry_run(PYRAMID, "60")
    assert lines_with(out, f"t4-16gb {safe:,} to {largest:,}")


IN_BF16 = """
    import torch

    layer = torch.nn.Linear(64, 64).cuda().bfloat16()
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    for _ in range(3):
        layer(torch.randn(8, 64).cuda().bfloat16()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_gpus_without_units_for_bf16_are_named(dry_run):
    _, out, _ = dry_run(IN_BF16)
    assert lines_with(out, "Without BF16 units: BF16 runs at the rate of FP32, and attention", "t4-16gb", "v100-32gb")
    _, out, _ = dry_run(IN_BF16.replace(".bfloat16()", ""))
    assert "BF16" not in out


VALIDATES = """
    import sys
    import torch
    from torch import nn

    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(3):
        model(torch.randn(8, 64).cuda()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if sys.argv[1] == "evaluates" and step == 1:
            model.eval()
            with torch.no_grad():
                for _ in range(20):
                    model(torch.randn(128, 64).cuda())
            model.train()
"""


def test_an_evaluation_between_two_steps_counts_neither_for_the_time_nor_for_the_batch(dry_run):
    plain, evaluates = (
        json.loads(dry_run(VALIDATES, how, options=("--json", "--gpu", "t4"))[1].splitlines()[-1])
        for how in ("trains", "evaluates")
    )
    assert plain["seconds"] == evaluates["seconds"]
    assert plain["batch"] == evaluates["batch"] == 8
    _, out, _ = dry_run(VALIDATES, "evaluates")
    assert lines_with(out, "This is for a step like step 2; step 3 has", "for example because it evaluates the model")


def test_a_picture_a_snapshot_and_a_trace_are_written(dry_run, tmp_path):
    files = {name: tmp_path / f"out.{name}" for name in ("svg", "pickle", "json")}
    options = ["--gpu", "t4", "--timeline", files["svg"], "--snapshot", files["pickle"], "--trace", files["json"]]
    code, out, err = dry_run(TRAINS, "512", options=map(str, options))
    assert code == 0, err
    assert "optimizer state" in files["svg"].read_text()
    events = json.loads(files["json"].read_text())["traceEvents"]
    assert [event["name"] for event in events if event["ph"] == "X" and event["tid"] == 1] == [
        "step 1",
        "step 2",
        "step 3",
    ]
    highest = max(sum(event["args"].values()) for event in events if event["ph"] == "C")
    assert f"Peak: {highest / 2**20:.2f} MiB" in out
    (report,) = reports_of(str(files["pickle"]))
    weights = sum(512 * -(-4 * n // 512) for n in (512 * 512, 512, 10 * 512, 10))
    assert report.categories["optimizer state"] == 2 * weights
    assert report.categories["parameters"] == weights
    assert any(line.endswith("train.py:12") for line in report.lines)


ONE_OF_MANY = """
    import os
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("nccl")
    print("rank", dist.get_rank(), "of", dist.get_world_size(), "local", os.environ["LOCAL_RANK"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = DistributedDataParallel(torch.nn.Linear(1024, 1024, bias=False).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    count = torch.tensor(3.0, device="cuda")
    dist.all_reduce(count)
    print("count", count.item())
    names = [None] * dist.get_world_size()
    dist.all_gather_object(names, {"rank": dist.get_rank()})
    print("names", len(names), names[0])
    for _ in range(3):
        model(torch.randn(4, 1024).cuda()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_one_rank_of_many_runs_alone(dry_run):
    options = ("--gpu", "h100", "--gpus", "8", "--nodes", "2", "--rank", "9", "--json")
    code, out, err = dry_run(ONE_OF_MANY, options=options)
    assert code == 0, err
    assert "rank 9 of 16 local 1" in out
    assert "count 48.0" in out
    assert "names 16 {'rank': 9}" in out
    rows = {row["name"]: row for row in json.loads(out.splitlines()[-1])["collectives"]}
    gradient = rows["all_reduce"]
    assert (gradient["ranks"], gradient["calls"], gradient["bytes"]) == (16, 1, 4 * 1024**2)
    assert gradient["calls_in_all"] == 4
    assert gradient["seconds"] > 0
    code, out, _ = dry_run(ONE_OF_MANY, options=options[:-1])
    assert lines_with(out, "1 x  all_reduce of 16 ranks", "4.00 MiB")
    assert "RANK" not in os.environ


def test_numbers_are_gpus_and_torchscript_knows_the_factories(dry_run):
    code, out, err = dry_run("""
        import torch

        @torch.jit.script
        def scaled(x: torch.Tensor) -> torch.Tensor:
            return x * torch.tensor(2.0)

        model = torch.nn.Linear(8, 8).to(0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        print("home", model.weight.device, scaled(torch.ones(2)).tolist())
        model(torch.ones(2, 8, device=0)).sum().backward()
        optimizer.step()
    """)
    assert code == 0, err
    assert "home cuda:0 [2.0, 2.0]" in out


def test_large_storage_without_data_is_resized_and_memory_follows(dry_run):
    code, out, err = dry_run(
        """
        import torch

        weight = torch.nn.Parameter(torch.empty(2**26, device="cuda"))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        weight.sum().backward()
        optimizer.step()
        del optimizer
        weight.untyped_storage().resize_(0)
        print("left", torch.cuda.memory_allocated() - weight.grad.nbytes)
        weight.untyped_storage().resize_(2**28)
        print("back", torch.cuda.memory_allocated() - weight.grad.nbytes)
    """,
        options=("--gpu", "t4", "--steps", "9"),
    )
    assert code == 0, err
    left, back = (int(lines_with(out, word)[0].split()[1]) for word in ("left", "back"))
    assert back - left == 2**28


def test_state_of_an_optimizer_that_ran_out_of_memory_is_its_own(dry_run):
    code, out, _ = dry_run(
        """
        import torch

        weights = [torch.nn.Parameter(torch.empty(2**29, device="cuda")) for _ in range(2)]
        optimizer = torch.optim.Adam(weights, foreach=False)
        sum(weight.sum() for weight in weights).backward()
        optimizer.step()
    """,
        options=("--gpu", "t4", "--json"),
    )
    assert code == 1
    report = json.loads(out.splitlines()[-1])
    assert report["out_of_memory"]
    assert report["at_peak"]["categories"]["optimizer state"] >= 2**31


def test_one_rank_alone_under_torchrun(dry_run):
    code, out, err = dry_run(
        """
        import os
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        dist.init_process_group("nccl")
        rank = int(os.environ["LOCAL_RANK"])
        model = DistributedDataParallel(torch.nn.Linear(8, 8).to(rank), device_ids=[rank])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(2, 8, device="cuda")).sum().backward()
        optimizer.step()
        print("ranks", dist.get_world_size())
    """,
        options=("--gpu", "t4", "--torchrun", "--steps", "9"),
    )
    assert code == 0, err
    assert "ranks 1" in out


ALONE = """
    import sys
    import torch
    import torch.distributed as dist
    from torch import nn

    path, kind = sys.argv[1:]
    ranks = {"rank": 0, "world_size": 2 if kind == "two" else 1}
    if kind == "environment":
        import os
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1"}
        dist.init_process_group("nccl")
    elif kind == "nothing":
        dist.init_process_group("nccl")
    elif kind == "address":
        dist.init_process_group("nccl", "tcp://localhost:29517?rank=0&world_size=1")
    else:
        dist.init_process_group("nccl", init_method="file://" + path, **ranks)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 2048), nn.Linear(2048, 2048)).cuda(), [0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(4, 8, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.all_reduce(torch.ones(2, device="cpu" if kind == "host" else "cuda"))
"""


@pytest.mark.parametrize("kind", ["environment", "file", "address"])
def test_a_script_may_make_a_group_of_one_rank(dry_run, tmp_path, monkeypatch, kind):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    code, out, err = dry_run(ALONE, str(tmp_path / "file"), kind, options=("--gpu", "t4", "--json"))
    assert code == 0, err
    report = json.loads(out.splitlines()[-1])
    weights = 4 * (2048 * 8 + 2048 + 2048 * 2048 + 2048)
    assert 3 * weights <= report["peak_allocated_bytes"] < 3.2 * weights  # weights, gradients, buckets
    assert report["left_behind_bytes"] == 0  # DDP makes its buckets again in the second step


@pytest.mark.parametrize(
    ("kind", "code", "words"),
    [
        ("two", 2, "The script makes a process group of 2 ranks, but here it is alone. Use --gpus 2.\n"),
        ("nothing", 1, "environment variable RANK expected, but not set"),
        ("nothing", 1, "The script expects torchrun: use --torchrun for one rank, or --gpus for several."),
        ("host", 1, "No backend type associated with device type cpu"),
    ],
)
def test_a_group_that_would_fail_fails(dry_run, tmp_path, monkeypatch, kind, code, words):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    found, _, err = dry_run(ALONE, str(tmp_path / "file"), kind, options=("--gpu", "t4", "--steps", "9"))
    assert found == code
    assert words in err


SPAWNS = """
    import os
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    from torch.nn.parallel import DistributedDataParallel

    def work(rank, ranks):
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "12355"
        dist.init_process_group("nccl", rank=rank, world_size=ranks)
        torch.cuda.set_device(rank)
        model = DistributedDataParallel(torch.nn.Linear(8, 8).to(rank), device_ids=[rank])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(2, 8, device=rank)).sum().backward()
        optimizer.step()
        print("rank", dist.get_rank(), "of", dist.get_world_size())
        dist.destroy_process_group()

    if __name__ == "__main__":
        mp.spawn(work, args=(4,), nprocs=4)
"""


def test_one_of_the_processes_that_a_script_spawns_runs(dry_run):
    code, out, err = dry_run(SPAWNS, options=("--gpu", "t4", "--gpus", "4", "--rank", "2"))
    assert code == 0, err
    assert "rank 2 of 4" in out
    assert lines_with(out, "process 2 of 4 runs")
    code, out, err = dry_run(SPAWNS)
    assert code == 2
    assert "starts 4 processes, but a node has 1 GPUs here. Use --gpus 4." in err


def test_steps_on_the_cpu_are_not_steps_on_the_gpu(dry_run):
    code, _, err = dry_run("""
        import torch

        weight = torch.nn.Parameter(torch.ones(4))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(5):
            weight.sum().backward()
            optimizer.step()
    """)
    assert code == 2
    assert "without an optimizer step on the GPU" in err


BY_HAND = """
    import sys
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(512, 512), nn.BatchNorm1d(512), nn.Linear(512, 4)).cuda()
    for batch in range(int(sys.argv[1])):
        for _ in range(2):
            model(torch.ones(8, 512).cuda()).sum().backward()
        print("turn", batch)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        for weight in model.parameters():
            weight.data.mul_(0.99)
            weight.data.add_(weight.grad, alpha=-0.1)
        model.zero_grad()
"""


@pytest.mark.parametrize(("batches", "steps"), [(9, 3), (2, 2)])
def test_steps_without_an_optimizer_are_counted(dry_run, batches, steps):
    code, out, err = dry_run(BY_HAND, str(batches), options=("--gpu", "t4", "--json"))
    report = json.loads(out.splitlines()[-1])
    assert code == 0, err
    assert report["finished_steps"] == out.count("turn ") == steps
    assert report["at_peak"]["categories"]["parameters"] > 512 * 512 * 4
    assert report["at_peak"]["categories"]["gradients"] > 512 * 512 * 4


def test_an_optimizer_per_parameter_can_replace_the_first(dry_run):
    code, out, err = dry_run(
        """
        import torch
        from torch import nn

        model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            model(torch.ones(1, 512).cuda()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        own = {weight: torch.optim.Adam([weight], foreach=False) for weight in model.parameters()}

        def step(weight):
            own[weight].step()
            own[weight].zero_grad()

        for weight in model.parameters():
            weight.register_post_accumulate_grad_hook(step)
        del optimizer
        for _ in range(3):
            model(torch.ones(1, 512).cuda()).sum().backward()
        """,
        options=("--gpu", "t4", "--steps", "9", "--json"),
    )
    report = json.loads(out.splitlines()[-1])
    assert code == 0, err
    peaks = [step["allocated"] for step in report["steps"]]
    assert len(peaks) == 6
    assert max(peaks[4:]) < 0.8 * max(peaks[1:3])  # 3.75 times the weights, not 5


def test_the_cause_of_an_error_is_printed_before_it(dry_run):
    code, _, err = dry_run("""
        try:
            import a_package_that_is_not_there
        except ImportError as error:
            raise RuntimeError("it cannot be imported") from error
    """)
    assert code == 1
    assert err.index("No module named 'a_package_that_is_not_there'") < err.index("it cannot be imported")
    assert err.count("Traceback") == 2


def test_a_gpu_between_allocated_and_reserved_is_tight(dry_run):
    script = """
        import torch

        weight = torch.nn.Parameter(torch.empty(14 * 2**28, device="cuda"))  # 14 GiB
        x = torch.nn.Parameter(torch.ones(4, device="cuda"))
        optimizer = torch.optim.SGD([x], lr=0.1)
        x.sum().backward()
        optimizer.step()
    """
    code, out, err = dry_run(script, options=("--gpu", "t4", "--steps", "1"))
    assert code == 0, err
    assert lines_with(out, "Tight:", "t4-16gb")
    assert not lines_with(out, "Fits:", "t4-16gb")
    assert lines_with(out, "Fits:", "a100-40gb")
    code, out, _ = dry_run(script, options=("--gpu", "a100-40gb", "--steps", "1", "--json"))
    report = json.loads(out.splitlines()[-1])
    assert (report["grades"]["t4-16gb"], report["fits"]["t4-16gb"]) == ("tight", True)


def test_a_script_that_downloads_is_told_that_it_cannot(dry_run):
    code, _, err = dry_run("import urllib.request\nurllib.request.urlopen('http://127.0.0.1:9/data.zip')\n")
    assert code == 1
    assert "URLError" in err
    assert "this machine cannot reach it" in err
    code, _, err = dry_run("raise OSError('the disk is full')\n")
    assert code == 1
    assert "cannot reach" not in err


def test_pictures_one_by_one_are_no_batch_until_they_are_stacked(dry_run):
    text = """
    import torch
    layer = torch.nn.Conv2d(3, 8, 3).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for step in range(3):
        pictures = [torch.zeros(3, 64, 64).cuda() for _ in range(2)]
        layer({}).sum().backward()
        optimizer.step()
    """
    code, out, err = dry_run(text.format("pictures[0] + pictures[1]"))
    assert code == 0, err
    assert "Largest batch" not in out
    code, out, err = dry_run(text.format("torch.stack(pictures)"))
    assert code == 0, err
    assert "Largest batch (here 2)" in out
    code, out, err = dry_run(text.format("torch.zeros(2, 3, 64, 64).cuda()").replace("(3, 64, 64)", "(2, 64)"))
    assert code == 0, err
    assert "Largest batch (here 2)" in out


def test_the_host_is_named_where_it_may_be_the_slower_one(dry_run):
    text = """
        import torch

        model = torch.nn.Linear({0}, {0}).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            model(torch.ones({0}, {0}).cuda()).sum().backward()
            optimizer.step()
        """
    small, large = (dry_run(text.format(width))[1] for width in (64, 16384))
    assert "The host may be slower" in small
    assert "The host may be slower" not in large


def test_what_a_library_compiles_while_it_is_loaded_is_not_listed(dry_run, tmp_path):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "decorating.py").write_text("import torch\n\n@torch.compile\ndef twice(x):\n    return 2 * x\n")
    text = f"""
    import sys
    import torch
    sys.path.insert(0, {str(folder)!r})
    import decorating
    layer = torch.nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    decorating.twice(layer(torch.ones(2, 4).cuda())).sum().backward()
    optimizer.step()
    """
    code, out, err = dry_run(text)
    assert code == 0, err
    assert "torch.compile" not in out
    code, out, err = dry_run(text.replace("4).cuda()", "4).cuda(); layer = torch.compile(layer)", 1))
    assert code == 0, err
    assert "torch.compile: not compiled" in out


def test_what_is_moved_only_once_is_no_batch(dry_run):
    text = """
    import torch
    layer = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    table = torch.zeros(4096, 8)
    for step in range(3):
        y = layer(torch.zeros(16, 8).cuda())
        table = table.cuda()
        (y.sum() + table.sum()).backward()
        optimizer.step()
    """
    code, out, err = dry_run(text)
    assert code == 0, err
    assert "Largest batch (here 16)" in out
    code, out, err = dry_run(text.replace("range(3)", "range(1)"))
    assert code == 0, err
    assert "Largest batch (here 4,096)" in out


def test_a_program_that_catches_it_and_takes_no_step_is_said_to(dry_run):
    script = """
        import sys
        import torch

        x = torch.zeros(3, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([x], lr=1)
        for _ in range(int(sys.argv[1])):
            x.sum().backward()
            optimizer.step()
        try:
            torch.empty(2**36, device="cuda")
        except torch.OutOfMemoryError:
            print("caught")
    """
    code, out, err = dry_run(script, "1")
    assert code == 0, err
    assert lines_with(out, "Runs out of memory at")
    assert lines_with(out, "The program catches the error, and takes no optimizer step after it.")
    code, out, _ = dry_run(script, "1", options=("--gpu", "t4", "--json"))
    report = json.loads(out.splitlines()[-1])
    assert (code, report["out_of_memory"], report["caught"]) == (0, True, True)
    code, _, err = dry_run(script, "0")
    assert code == 2
    assert "caught an out-of-memory error and ended without an optimizer step" in err


def test_a_smaller_batch_that_gets_further_is_named(dry_run):
    code, out, _ = dry_run(BATCHED, "40000")
    assert code == 1
    named = named_batch(out, "40,000")
    assert lines_with(out, "what comes later may need more")
    _, out, _ = dry_run(BATCHED, "16", options=("--gpu", "t4", "--json"))
    largest = json.loads(out.splitlines()[-1])["largest_batch"]["t4-16gb"]
    assert 0.9 * largest <= named < 40_000


def named_batch(out, here):
    words = lines_with(out, "A batch of at most ", f" (here {here}) fits, all else equal")[0]
    return int(words.split("A batch of at most ")[1].split()[0].replace(",", ""))


GROWS = """
    import sys
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4096, 4096), *(nn.Sequential(nn.ReLU(), nn.Linear(4096, 4096)) for _ in range(40)))
    model.cuda()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    for _ in range(3):
        model(torch.zeros(int(sys.argv[1]), 4096).cuda()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_the_batch_that_fits_is_named_where_the_first_step_did(dry_run):
    code, out, _ = dry_run(GROWS, "10000")
    assert code == 1
    assert lines_with(out, "     1  ")
    assert "what comes later" not in out
    named = named_batch(out, "10,000")
    _, out, _ = dry_run(GROWS, "4", options=("--gpu", "t4", "--json"))
    largest = json.loads(out.splitlines()[-1])["largest_batch"]["t4-16gb"]
    assert 0.8 * largest <= named <= 1.1 * largest


def test_a_gpu_too_small_for_the_weights_has_no_batch_that_fits(dry_run):
    code, out, _ = dry_run(
        """
        import torch
        from torch import nn

        model = nn.Linear(54000, 54000).cuda()
        x = torch.ones(16, 54000).cuda()
        torch.optim.Adam(model.parameters())
        model(x).sum().backward()
        """
    )
    assert code == 1
    assert lines_with(out, "Not even a batch of 1 (here 16) fits, all else equal.")


EVALUATES = """
    import sys
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    class Block(nn.Sequential):
        gradient_checkpointing = False

        def forward(self, x):
            if self.gradient_checkpointing and self.training:
                return checkpoint(super().forward, x, use_reentrant=False)
            return super().forward(x)

    model = nn.Sequential(*(Block(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)) for _ in range(4))).cuda()
    model.train(sys.argv[1] == "train")
    for block in model:
        block.gradient_checkpointing = True
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.zeros(int(sys.argv[2]), 1024).cuda()).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("rows", [2**10, 2**19])
def test_checkpointing_that_eval_mode_turns_off_is_named(dry_run, rows):
    _, out, _ = dry_run(EVALUATES, "evaluate", str(rows))
    assert lines_with(out, "Activation checkpointing is on, but has no effect: the model is in eval mode.") == [
        line for line in out.splitlines() if "in eval mode. " in line
    ]
    assert bool(lines_with(out, "model.train(): activation checkpointing is already on")) == (rows == 2**19)
    assert "checkpointing of every block" not in out
    _, out, _ = dry_run(EVALUATES, "train", str(rows))
    assert "eval mode" not in out


@pytest.mark.parametrize("frozen", [0, 5])
def test_lora_is_not_advised_where_most_weights_are_frozen(dry_run, frozen):
    code, out, _ = dry_run(
        """
        import sys
        import torch
        from torch import nn

        model = nn.Sequential(*(nn.Linear(4096, 4096, bias=False) for _ in range(8))).cuda()
        for layer in model[: int(sys.argv[1])]:
            layer.requires_grad_(False)
        optimizer = torch.optim.AdamW(model.parameters())
        for rows in (1, 1, 2**20):
            model(torch.zeros(rows, 4096, device="cuda")).sum().backward()
            optimizer.step()
        """,
        str(frozen),
        options=("--gpu", "t4", "--json"),
    )
    assert code == 1
    cures = " ".join(cure["change"] for cure in json.loads(out.splitlines()[-1])["cures"])
    assert "8-bit optimizer" in cures
    assert ("LoRA" in cures) == (frozen == 0)


def test_the_largest_batch_agrees_with_the_verdict(dry_run):
    for batch in (1600, 2600, 3000, 3300):
        _, out, _ = dry_run(BATCHED, str(batch), options=("--json", "--gpu", "a100-40gb"))
        report = json.loads(out.splitlines()[-1])
        for gpu, grade in report["grades"].items():
            assert (report["largest_batch"][gpu] >= batch) == (grade == "fits")


TUNES = """
    import sys
    import torch
    from torch import nn

    batch, seq, words = int(sys.argv[1]), 512, 8192
    frozen = nn.Embedding(words, seq).cuda().requires_grad_(False)
    layer, head = nn.Linear(seq, 64).cuda(), nn.Linear(64, words).cuda().requires_grad_(False)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    for _ in range(3):
        parts = torch.randint(words, (int(sys.argv[2]), batch, seq)).cuda()
        ids, *others = (part.long() for part in parts)
        logits = head(layer(frozen(ids)))
        nn.functional.cross_entropy(logits.flatten(0, 1), (others or [ids])[0].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("parts", ["1", "3"])
def test_temporaries_of_the_size_of_a_frozen_weight_grow_with_the_batch(dry_run, parts):
    """At a batch of 1, the logits and their gradient take as many bytes as the frozen embedding."""
    largest = {}
    for batch in ("1", "2"):
        code, out, err = dry_run(TUNES, batch, parts, options=("--json", "--gpu", "t4"))
        assert code == 0, err
        report = json.loads(out.splitlines()[-1])
        assert report["batch"] == int(batch)  # and not the number of parts
        largest[batch] = report["largest_batch"]["t4-16gb"]
    assert largest["1"] == pytest.approx(largest["2"], rel=0.05)
