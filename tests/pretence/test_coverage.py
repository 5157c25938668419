"""The report of executed CUDA lines: it finds the lines, and it misses what did not run."""

import inspect
import textwrap
from pathlib import Path

from helpers.core.files import ROOT
from helpers.core.table import text_table
from helpers.core.units import human_bytes

import pytest

from .coverage import Coverage, helper_files
from .coverage_lines import WITH, WITHOUT, lines_of_text
from .coverage_run import CountedRun, counted_run


def found(source):
    return [(line.text, line.arm) for line in lines_of_text(textwrap.dedent(source), "a.py")]


def test_a_line_that_names_cuda_is_found_and_prose_is_not():
    assert found(
        """
        \"\"\"About torch.cuda.\"\"\"
        print("a CUDA GPU would be faster")
        x = x.to("cuda:1")
        torch.cuda.synchronize()
        dist.init_process_group(backend="nccl")
        y = 1
        """
    ) == [
        ('x = x.to("cuda:1")', WITH),
        ("torch.cuda.synchronize()", WITH),
        ('dist.init_process_group(backend="nccl")', WITH),
    ]


def test_both_arms_of_a_branch_are_found():
    assert found(
        """
        gpus = torch.cuda.device_count()
        if gpus >= 2:
            a()
            if b:
                c()
        else:
            d()
        e()
        """
    ) == [
        ("gpus = torch.cuda.device_count()", WITH),
        ("if gpus >= 2:", WITH),
        ("a()", WITH),
        ("if b:", WITH),
        ("c()", WITH),
        ("d()", WITHOUT),
    ]


def test_what_follows_an_early_return_stands_in_a_branch():
    assert found(
        """
        def f(device):
            if device.type != "cuda":
                return 0
            a()
            return 1
        b()
        """
    ) == [('if device.type != "cuda":', WITH), ("return 0", WITHOUT), ("a()", WITH), ("return 1", WITH)]


def test_a_branch_for_want_of_a_gpu_is_not_the_gpus():
    source = """
        if kind == "cuda" and not torch.cuda.is_available():
            a()
        else:
            b()
        """
    assert {("a()", WITHOUT), ("b()", WITH)} <= set(found(source))


def test_a_property_of_one_line_speaks_of_cuda_and_a_device_does_not():
    source = """
        def reads(self):
            return self.device.type == "cuda"

        device = torch.device("cuda") if ok else torch.device("cpu")
        if self.reads:
            a()
        if device:
            b()
        """
    assert ("a()", WITH) in found(source)
    assert "b()" not in dict(found(source))


def test_statements_inside_try_with_and_match_are_found():
    source = """
        if torch.cuda.is_available():
            try:
                a()
            except RuntimeError:
                b()
            finally:
                c()
            match x:
                case 1:
                    with y:
                        d()
        """
    assert {"a()", "b()", "c()", "d()"} <= dict(found(source)).keys()


@pytest.fixture
def file_and_run():
    path = next(path for path in helper_files() if path.name == "doctor.py")
    lines = [line for line in lines_of_text(path.read_text(), "helpers/doctor.py") if line.arm == WITH]
    return path, lines, CountedRun(0, "", {"helpers/doctor.py": [line.first for line in lines[:-1]]})


def test_a_line_that_did_not_run_is_missed_or_excused(file_and_run):
    path, lines, run = file_and_run
    coverage = Coverage([path], [run], {})
    assert coverage.missed == lines[-1:]
    assert f"NOT EXECUTED  helpers/doctor.py:{lines[-1].first}" in str(coverage)
    key = (lines[-1].path, lines[-1].text)
    coverage = Coverage([path], [run], {key: "because"})
    assert coverage.excused == {lines[-1]: "because"}
    assert not coverage.stale


def test_a_reason_for_a_line_that_ran_or_is_gone_is_stale(file_and_run):
    path, lines, run = file_and_run
    reasons = {("helpers/doctor.py", lines[0].text): "ran", ("helpers/doctor.py", "gone()"): "gone", ("b.py", "c"): "?"}
    assert Coverage([path], [run], reasons).stale == list(reasons)[:2]


@pytest.mark.slow
def test_lines_of_ranks_and_subprocesses_count():
    run = counted_run("three_processes", ["tests/pretence/inside/three_processes.py"])
    assert run.returncode == 0, run.output
    for function in (human_bytes, text_table):
        lines, first = inspect.getsourcelines(function)
        path = Path(inspect.getfile(function)).relative_to(ROOT).as_posix()
        assert first + len(lines) - 1 in run.lines[path], function  # its last line, which no import executes
