"""The GPU lane, with steps that pass, fail, hang and are cut off: nothing here needs a GPU."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from math import inf
from pathlib import Path

from helpers.__main__ import main
from helpers.claims.measurement import Measurement
from helpers.claims.receipt import Receipt
from helpers.core.files import ROOT
from helpers.course.gpu_lane import Lane, LaneStep, cli, lane_steps
from helpers.course.gpu_lane.packages import NEEDED, WITH_TORCH, closure
from helpers.course.gpu_lane.state import LaneState, Outcome
from helpers.course.gpu_lane.summary import summary
from helpers.course.receipts.steps import steps as receipt_steps

import psutil
import pytest
import torch

PASSES = "print('it went well')"
FAILS = "print('about to fail'); 1 / 0"
HANGS = "import time; print('waiting', flush=True); time.sleep(600)"


def step(name, code, *files):
    return LaneStep(name, (sys.executable, "-u", "-c", code), files)


def lane(folder, *steps, machine="a GPU", **options):
    state = LaneState.read(folder / "state.json", machine)
    return Lane(steps, state, folder / "log.txt", "cpu", **options)


def statuses(folder):
    outcomes = json.loads((folder / "state.json").read_text())["outcomes"]
    return {name: outcome["status"] for name, outcome in outcomes.items()}


# -- one call


@pytest.mark.slow
def test_a_failure_and_a_hang_cost_no_other_step(tmp_path, capsys):
    steps = [step("a", FAILS), step("b", HANGS), step("c", PASSES), step("d", "import os; os._exit(3)")]
    began = time.monotonic()
    assert lane(tmp_path, *steps, limit=3).run()
    assert time.monotonic() - began < 60
    assert statuses(tmp_path) == {"a": "failed", "b": "failed", "c": "done", "d": "failed"}
    said = capsys.readouterr().out
    assert "failed: ZeroDivisionError: division by zero" in said
    assert "failed: it took more than 3 s" in said
    assert "done: it went well" in said
    assert "failed: it printed nothing and ended with code 3" in said
    log = (tmp_path / "log.txt").read_text()
    assert [line.split()[1] for line in log.splitlines() if line.startswith("===")] == ["a", "b", "c", "d"]
    assert "Traceback" in log
    assert "waiting" in log


@pytest.mark.slow
def test_a_hanging_step_is_ended_with_all_that_it_started(tmp_path):
    marker = tmp_path / "pid"
    child = "import subprocess, sys, time, pathlib\n"
    child += (
        "other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
    )
    child += f"pathlib.Path({str(marker)!r}).write_text(str(other.pid)); time.sleep(600)"
    lane(tmp_path, step("a", child), limit=5).run()
    pid = int(marker.read_text())
    for _ in range(50):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            break
        time.sleep(0.1)
    else:
        pytest.fail("the child of a hanging step lives on")


def test_steps_run_in_the_checkout_without_installing_it(tmp_path):
    code = (
        "import os, helpers.core.files as files; assert os.getcwd() == str(files.ROOT); print(os.environ['MPLBACKEND'])"
    )
    lane(tmp_path, LaneStep("a", (sys.executable, "-P", "-c", code))).run()
    assert statuses(tmp_path) == {"a": "done"}
    assert "agg" in (tmp_path / "log.txt").read_text()


def test_a_missing_package_skips_a_step_and_says_which(tmp_path):
    script = tmp_path / "needs.py"
    script.write_text(
        "import os\nimport nowhere.inside\nfrom helpers import check\nif os.environ.get('x'):\n    import optional\n"
    )
    lane(tmp_path, step("a", PASSES, script)).run()
    outcome = json.loads((tmp_path / "state.json").read_text())["outcomes"]["a"]
    assert (outcome["status"], outcome["words"]) == ("skipped", "not installed here: nowhere")


# -- several calls


def test_only_what_is_not_done_is_run_again_and_what_failed_comes_last(tmp_path, capsys):
    flag = tmp_path / "mended"
    failing = step("a", f"import pathlib; assert pathlib.Path({str(flag)!r}).exists()")
    lane(tmp_path, failing, step("b", PASSES)).run()
    flag.touch()
    capsys.readouterr()
    lane(tmp_path, failing, step("b", PASSES), step("c", PASSES)).run()
    ran = [line.partition(" ")[0] for line in capsys.readouterr().out.splitlines()]
    assert ran == ["c", "a"]
    assert set(statuses(tmp_path).values()) == {"done"}


def test_a_step_whose_file_has_changed_is_run_again(tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text("1")
    for text, runs in (("1", True), ("1", False), ("2", True)):
        script.write_text(text)
        lane(tmp_path, step("a", PASSES, script)).run()
        assert ("a ..." in capsys.readouterr().out) is runs


@pytest.mark.parametrize(
    "junk", ["", "{", "[]", '{"machine": "a GPU"}', '{"machine": "a GPU", "outcomes": {"a": {"x": 1}}}']
)
def test_another_machine_or_a_broken_file_begins_anew(tmp_path, junk, capsys):
    lane(tmp_path, step("a", PASSES)).run()
    assert lane(tmp_path, step("a", PASSES), machine="another GPU").state.outcomes == {}
    (tmp_path / "state.json").write_text(junk)
    capsys.readouterr()
    assert lane(tmp_path, step("a", PASSES)).run()
    assert "a ..." in capsys.readouterr().out


def test_a_spent_budget_starts_no_step_and_the_next_call_goes_on(tmp_path, capsys):
    steps = [step("a", "import time; time.sleep(1.5)"), step("b", PASSES)]
    assert not lane(tmp_path, *steps, budget=1).run()
    assert statuses(tmp_path) == {"a": "done"}
    assert lane(tmp_path, *steps, budget=1).run()
    assert statuses(tmp_path) == {"a": "done", "b": "done"}


@pytest.mark.slow
def test_a_step_that_the_budget_cuts_off_is_first_in_the_next_call(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("helpers.course.gpu_lane.lane._GRACE", 1.0)
    steps = [step("a", "import time; time.sleep(1)"), step("b", "import time; time.sleep(6)"), step("c", PASSES)]
    assert not lane(tmp_path, *steps, budget=2).run()
    assert statuses(tmp_path) == {"a": "done", "b": "interrupted"}
    assert not lane(tmp_path, *steps, budget=2).run()  # the first step of a call has its whole limit
    assert statuses(tmp_path) == {"a": "done", "b": "done"}
    assert lane(tmp_path, *steps, budget=2).run()


def test_a_failed_step_is_no_reason_to_call_again(tmp_path):
    steps = [step("a", FAILS), step("b", PASSES)]
    assert lane(tmp_path, *steps, budget=inf).run()
    assert lane(tmp_path, *steps, budget=0).run()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_lane_that_is_ended_is_taken_up_where_it_was(tmp_path, number):
    code = (
        "import sys; from tests.release.test_gpu_lane import *\n"
        "cli.lane_steps = lambda *_: [step('a', PASSES), step('b', HANGS), step('c', PASSES)]\n"
        "cli.device_name = lambda _: 'a GPU'; torch.__version__ = '2'\n"
        "sys.exit(main(['gpu', '--device', 'cpu', '--out', sys.argv[1]]))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdout=subprocess.DEVNULL)
    for _ in range(600):
        if (tmp_path / "log.txt").exists() and "waiting" in (tmp_path / "log.txt").read_text():
            break
        time.sleep(0.1)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.send_signal(number)
    process.wait()
    if number == signal.SIGTERM:
        assert not psutil.wait_procs(children, timeout=10)[1]  # the step would keep the GPU's memory
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    assert statuses(tmp_path) == {"a": "done", "b": "interrupted"}
    assert lane(tmp_path, step("a", PASSES), step("b", PASSES), step("c", PASSES), machine="a GPU, PyTorch 2").run()
    assert set(statuses(tmp_path).values()) == {"done"}


# -- the command


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Return a function that runs `helpers gpu` with fake steps and these arguments."""

    def call(*arguments, **codes):
        steps = [step(name, code) for name, code in codes.items()]
        monkeypatch.setattr(cli, "lane_steps", lambda device, again: steps)
        return main(["gpu", "--device", "cpu", "--out", str(tmp_path), *arguments])

    return call


def test_exit_codes(command, capsys):
    assert command(a=PASSES) == 0
    assert command(a=PASSES, b=FAILS) == 1
    said = capsys.readouterr().out
    assert "2 steps: 1 done, 1 failed" in said
    assert "failed: b: ZeroDivisionError: division by zero" in said
    assert command("--budget", "0", c=PASSES) == 3
    assert "run the same command again" in capsys.readouterr().out
    assert command("--only", "zz*", a=PASSES) == 2
    if not torch.cuda.is_available():
        assert main(["gpu"]) == 2
        assert "sees no NVIDIA GPU" in capsys.readouterr().err


def test_only_again_and_list(command, capsys):
    command("--only", "a*", a1=PASSES, b=PASSES)
    assert "b ..." not in capsys.readouterr().out
    command("--list", a1=PASSES, b=PASSES)
    assert capsys.readouterr().out.split() == ["done", "a1", "-", "b"]
    command("--again", "--only", "a*", a1=PASSES, b=PASSES)
    assert "a1 ..." in capsys.readouterr().out


def test_the_summary_tells_the_errors_of_planner_and_meter(tmp_path):
    said = "measured / predicted peak"
    rows = [Measurement("planner", said, str(r), r, "", 0, 9, "a GPU") for r in (0.99, 1.0, 1.04)]
    receipt = Receipt("a GPU", "cuda", {"planner_honesty": {"status": "done", "rows": rows}})
    state = LaneState(tmp_path / "state.json", "a GPU", {"a": Outcome("skipped", "not installed here: x")})
    text = summary([LaneStep("a", ()), LaneStep("b", ())], LaneState(state.path, "", {}), None)
    assert "2 steps: 2 not yet run" in text
    assert "not measured yet" in text
    state.outcomes["a"] = Outcome("skipped", "not installed here: x", digest=LaneStep("a", ()).digest)
    text = summary([LaneStep("a", ())], state, receipt)
    assert "skipped: a: not installed here: x" in text
    assert "3 cases, median error 1.00%, worst 4.00% (1.04)" in text


# -- the steps


def test_every_source_measurement_and_cuda_test_is_a_step():
    names = [lane_step.name for lane_step in lane_steps("cuda")]
    assert names[0] == "environment"
    assert len(set(names)) == len(names)
    for one in receipt_steps():
        assert (one.name if one.lab else f"measurements/{one.name}") in names
    rooms = {name.split("/")[1] for name in names if name.startswith("tests/")}
    assert {"core", "formats", "meter", "planner", "ranks"} <= rooms
    assert "release" not in rooms  # a step without a test fails
    places = {name: place for place, name in enumerate(names)}
    assert places["measurements/planner_honesty"] < places["measurements/optimizers"] < places["labs/start_here"]
    assert places["labs/mixed_precision"] < places["labs/sharding"]


@pytest.mark.slow
def test_no_step_needs_jupyter():
    jupyter = {"IPython", "ipykernel", "ipywidgets", "jupytext", "nbformat", "nbclient", "nbval"}
    code = (
        "import sys\n"
        f"for name in {sorted(jupyter)!r}: sys.modules[name] = None\n"
        "from helpers.course.gpu_lane import cli\n"
        "from helpers.course.receipts import one_step, cli as receipts_cli\n"
        "from helpers import check, explore, show\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for one in lane_steps("cuda"):
        for path in one.files:
            assert not jupyter & {line.split()[1].partition(".")[0] for line in top_imports(path)}, path


def top_imports(path: Path):
    return [line for line in path.read_text().splitlines() if line.startswith(("import ", "from "))]


def test_wheels_are_those_of_the_needed_packages_and_of_what_they_need():
    found = closure(NEEDED)
    assert {"peft", "accelerate", "transformers", "tokenizers", "pytest", "pluggy", "markupsafe"} <= set(found)
    assert not WITH_TORCH & set(found)
    assert not {name for name in found if name.startswith("nvidia")}
    assert closure(["jinja2"]).keys() == {"jinja2", "markupsafe"}
