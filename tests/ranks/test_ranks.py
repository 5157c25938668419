"""Real ranks: what comes back, what is said when one fails, and that nothing stays behind."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from helpers import RankError, rank_device, run_ranks
from helpers.course.build.run_notebook import run_notebook
from helpers.ranks.failure import QUEUED, overdue
from helpers.ranks.rank import Rank

import nbformat
import psutil
import pytest
import torch
import torch.distributed as dist
from torch import nn


def sum_of_ranks(start):
    x = torch.full((1000,), float(start + dist.get_rank()))
    dist.all_reduce(x)
    print(f"I am {dist.get_rank()}")
    return x[0].item()


def ranks_alive(pid=None):
    """Processes that run_ranks has started and that are still there: the children of its server."""
    alive = []
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # a zombie is one, too
            if "forkserver" in " ".join(child.parent().cmdline()) and child.status() != psutil.STATUS_ZOMBIE:
                alive.append(child)
    return alive


def test_results_lines_and_peaks_come_back_in_rank_order(capsys):
    run = run_ranks(sum_of_ranks, 4, 10)
    assert run.results == [46.0] * 4
    assert run.printed == [f"I am {rank}" for rank in range(4)]
    assert all(4000 <= peak < 10_000 for peak in run.peak_bytes)
    assert capsys.readouterr().out.splitlines() == [f"[rank {rank}] I am {rank}" for rank in range(4)]


def test_a_class_in_a_function_may_use_what_its_module_has_imported():
    def work():
        class Held:
            since = time.time  # looked up by the class's own line, not by a method

        return Held.since() > 0

    assert run_ranks(work, 1, measure=False).results == [True]


def test_peaks_are_those_of_each_rank():
    def work():
        held = torch.zeros(2**18 * (1 + dist.get_rank()))
        return held.sum().item()

    peaks = run_ranks(work, 2).peak_bytes
    assert [round(peak / 2**20, 2) for peak in peaks] == [1, 2]
    assert run_ranks(work, 2, measure=False).peak_bytes == [0, 0]


def test_a_meter_inside_tells_categories_apart():
    def work():
        from helpers import MemoryMeter

        model = nn.Linear(1000, 100)
        with MemoryMeter(model) as meter:
            model(torch.ones(2, 1000)).sum().backward()
        return meter.at_peak["parameters"], meter.at_peak["gradients"]

    assert run_ranks(work, 2, measure=False).results == [(400_400, 400_000)] * 2  # the bias comes later


def test_closures_arguments_and_results_travel():
    factor, model = 3.0, nn.Linear(2, 2)

    def work(numbers, *, offset=1):
        return {"y": model(numbers * factor + offset).detach(), "rank": dist.get_rank()}

    x = torch.randn(4, 2)
    results = run_ranks(work, 2, x).results
    assert [r["rank"] for r in results] == [0, 1]
    assert torch.equal(results[1]["y"], model(x * factor + 1).detach())


def test_the_work_may_open_and_close_its_own_group():
    def work():
        assert not dist.is_initialized()
        dist.init_process_group("gloo")
        rank = int(os.environ["RANK"]), dist.get_rank(), dist.get_world_size()
        dist.destroy_process_group()
        return rank

    assert run_ranks(work, 2, process_group=False).results == [(0, 0, 2), (1, 1, 2)]


def test_an_exception_shows_the_ranks_own_traceback():
    def deep(rank):
        if rank == 1:
            time.sleep(0.5)  # by then rank 0 waits
            raise ValueError("rank one does not like this")

    def work():
        deep(dist.get_rank())
        dist.barrier()

    with pytest.raises(RankError) as error:
        run_ranks(work, 2)
    text = str(error.value)
    assert text.startswith("rank 1 raised ValueError: rank one does not like this")
    assert "in deep" in text
    assert 'raise ValueError("rank one does not like this")' in text
    assert "rank 0: in barrier" in text
    assert "worker.py" not in text


def test_a_deadlock_is_reported_in_time_with_ranks_and_collective():
    def work():
        x = torch.ones(3)
        dist.all_reduce(x)
        if dist.get_rank() == 0:
            dist.broadcast(x, src=1)

    start = time.monotonic()
    with pytest.raises(RankError) as error:
        run_ranks(work, 2, timeout=1)
    assert time.monotonic() - start < 300  # far below gloo's own half hour; most of it is the start of the ranks
    text = str(error.value)
    assert "rank 0 has not come back within 1 s" in text
    assert "rank 0: in broadcast" in text
    assert "dist.broadcast(x, src=1)" in text
    assert "rank 1: had finished; it has called one collective, all_reduce" in text


@pytest.mark.parametrize("single", [False, True])
def test_a_deadlock_in_a_reduce_scatter_names_what_was_called_and_not_what_gloo_makes_of_it(single):
    def work():
        mine = torch.empty(2)
        dist.all_reduce(torch.ones(2))
        if dist.get_rank() == 1:
            return
        if single:
            dist.reduce_scatter_tensor(mine, torch.ones(4))
        else:
            dist.reduce_scatter(mine, list(torch.ones(4).chunk(2)))

    with pytest.raises(RankError) as error:
        run_ranks(work, 2, timeout=1, device="cpu")
    text = str(error.value)
    assert "it has called 2 collectives, the last one reduce_scatter" in text  # not counting the barrier of the start
    assert "rank 1: had finished; it has called one collective, all_reduce" in text


def test_a_deadlock_inside_ddp_names_backward_and_the_collective():
    def work():
        model = nn.parallel.DistributedDataParallel(nn.Linear(3, 3))
        loss = model(torch.ones(1, 3)).sum()
        if dist.get_rank() == 0:
            loss.backward()

    with pytest.raises(RankError, match=r"rank 0: in backward; .*the last one all_reduce"):
        run_ranks(work, 2, timeout=1)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_rank_that_dies_is_named_with_its_exit_code():
    def work():
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        dist.barrier()

    with pytest.raises(RankError, match=r"rank 1 died \(exit code -11\)"):
        run_ranks(work, 2)


def test_leaving_early_is_an_error_not_a_result():
    def work():
        if dist.get_rank() == 1:
            sys.exit(3)

    with pytest.raises(RankError, match="rank 1 raised SystemExit: 3"):
        run_ranks(work, 2)


def test_a_result_that_cannot_travel_is_an_error():
    def work():
        return (i for i in range(3))

    with pytest.raises(RankError, match="cannot pickle 'generator'"):
        run_ranks(work, 2)


def test_ranks_on_the_cpu_see_no_gpu():
    def work():
        return str(rank_device()), os.environ["CUDA_VISIBLE_DEVICES"], torch.cuda.device_count(), dist.get_backend()

    assert run_ranks(work, 2, device="cpu").results == [("cpu", "", 0, "gloo")] * 2


def test_ranks_without_a_gpu_each_are_refused_where_gpus_are_asked_for():
    ranks = torch.cuda.device_count() + 1
    with pytest.raises(ValueError, match=f"world_size is {ranks} on cuda"):
        run_ranks(sum_of_ranks, ranks, 0, device="cuda")


def test_a_report_of_ranks_on_gpus_says_that_calls_only_queue():
    line = ("cell.py", 3, "<module>")
    ranks = [
        Rank(number, None, None, Path("none"), device="cuda", position=([line], ["all_reduce"])) for number in range(2)
    ]
    report = str(overdue(ranks, 2))
    assert "rank 1: at this line; it has called one collective, all_reduce" in report
    assert report.endswith(QUEUED)
    for rank in ranks:
        rank.device = "cpu"
    assert QUEUED not in str(overdue(ranks, 2))


def test_an_error_of_gloo_is_told_in_words():
    def work():
        if dist.get_rank() == 0:
            dist.send(torch.zeros(8), 1)
        else:
            dist.recv(torch.zeros(4), 0)

    with pytest.raises(RankError, match="a message of 32 bytes came where 16 bytes were to be received") as raised:
        run_ranks(work, 2, measure=False)
    assert "enforce fail" not in str(raised.value)


def test_no_ranks_is_refused():
    with pytest.raises(ValueError, match="at least one rank"):
        run_ranks(sum_of_ranks, 0)


@pytest.mark.slow
def test_two_hundred_runs_without_a_false_failure_or_a_process_left():
    def work():
        x = torch.ones(1000) * (1 + dist.get_rank())
        dist.all_reduce(x)
        return x.sum().item()

    for _ in range(200):
        assert run_ranks(work, 2).results == [3000.0, 3000.0]
    assert ranks_alive() == []


@pytest.mark.slow
def test_work_that_closes_its_group_right_after_a_backward_pass_does_not_hang():
    def work():  # one rank in fifty did, before groups were kept alive
        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(nn.Linear(3, 3))
        model(torch.ones(1, 3)).sum().backward()
        dist.barrier()
        dist.destroy_process_group()
        return model.module.weight.grad.sum().item()

    for _ in range(60):
        assert run_ranks(work, 3, process_group=False).results == [9.0] * 3


def test_failed_runs_leave_no_process_either(tmp_path):
    own = str(tmp_path)  # other tests, at work beside this one, start processes that sleep, too

    def work():
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", own])
        Path(own, str(child.pid)).touch()
        if dist.get_rank() == 0:
            raise RuntimeError("no")
        dist.barrier()

    with pytest.raises(RankError):
        run_ranks(work, 2)
    assert ranks_alive() == []
    assert any(tmp_path.iterdir())
    assert [p.pid for p in psutil.process_iter(["cmdline"]) if own in (p.info["cmdline"] or [])] == []


def script(tmp_path: Path, body: str) -> subprocess.Popen:
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(body))
    return subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True)


SLEEPER = """
    import signal
    from helpers import run_ranks
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background passes on "ignore"
    print("started", flush=True)  # once: ranks must not run the script again

    def work():
        import time
        time.sleep(600)

    try:
        run_ranks(work, 2)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        import time
        time.sleep(600)
"""


def wait_for(condition, seconds=240):  # a script that imports PyTorch takes a minute where the machine is very busy
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_an_interrupt_ends_the_ranks(tmp_path):
    process = script(tmp_path, SLEEPER)
    try:
        wait_for(lambda: len(ranks_alive(process.pid)) == 2)
        process.send_signal(signal.SIGINT)
        assert [process.stdout.readline() for _ in range(2)] == ["started\n", "interrupted\n"]
        wait_for(lambda: not ranks_alive(process.pid))
    finally:
        process.kill()
    assert process.communicate()[0] == ""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ranks_end_when_the_notebook_is_killed(tmp_path):
    process = script(tmp_path, SLEEPER)
    wait_for(lambda: len(ranks_alive(process.pid)) == 2)
    ranks = ranks_alive(process.pid)
    process.kill()
    process.communicate()
    wait_for(lambda: not any(rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE for rank in ranks))


@pytest.mark.slow
def test_in_a_notebook_functions_of_cells_run_and_their_lines_are_shown(tmp_path):
    cells = [
        "from helpers import run_ranks\nimport torch.distributed as dist\nfactor = 10",
        "def work(n):\n    print('hello')\n    print('I am', dist.get_rank())\n    return factor * n + dist.get_rank()",
        "run_ranks(work, 2, 4).results",
        "def bad():\n    assert dist.get_rank() == 0, 'only zero'\nrun_ranks(bad, 2)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    run_notebook(notebook, tmp_path, allow_errors=True)
    shown = notebook.cells[2].outputs
    assert shown[0]["data"]["text/plain"].splitlines() == [
        "[rank 0] hello",
        "[rank 0] I am 0",
        "[rank 1] hello",
        "[rank 1] I am 1",
    ]
    assert shown[-1]["data"]["text/plain"] == "[40, 41]"
    assert "assert dist.get_rank() == 0, 'only zero'" in notebook.cells[3].outputs[-1]["evalue"]
    assert not [output for cell in notebook.cells for output in cell.outputs if output.get("name") == "stderr"]
