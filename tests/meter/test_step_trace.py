"""Cutting a profiled step: events written by hand, those of GPUs among them, and events of real steps."""

import itertools
import random
from collections import Counter
from dataclasses import dataclass

from helpers.meter.step_profiler import _recorded
from helpers.meter.step_trace import STEP, step_stretches
from helpers.meter.step_work import part_name, step_work

import pytest
import torch
from torch.autograd import DeviceType

from .training import ARCHITECTURES, CPU, RECIPES, first_step


@dataclass(frozen=True)
class Event:
    """An event of Kineto; a kernel names the correlation of the operation that launched it."""

    label: str
    start: int
    end: int
    thread: int = 1
    correlation: int = 0
    launched_by: int = 0
    sequence: int = -1
    device: DeviceType = DeviceType.CPU
    annotation: bool = False

    def name(self):
        return self.label

    def start_ns(self):
        return self.start

    def duration_ns(self):
        return self.end - self.start

    def start_thread_id(self):
        return self.thread

    def correlation_id(self):
        return self.correlation

    def linked_correlation_id(self):
        return self.launched_by

    def sequence_nr(self):
        return self.sequence

    def device_type(self):
        return self.device

    def is_user_annotation(self):
        return self.annotation


def kernel(label, start, end, launched_by=0):
    return Event(label, start, end, launched_by=launched_by, device=DeviceType.CUDA)


def cut(*events):
    stretches, has_kernels = step_stretches(events)
    return [(s.start, s.end, s.phase, s.kind, s.name) for s in stretches], has_kernels


def test_what_follows_the_data_unseen_is_no_data():
    """A step that the profiler sees nothing of, such as one that waits, comes after its batch."""
    stretches, _ = cut(
        Event(STEP, 0, 100),
        Event("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 10, 60),
        Event("aten::stack", 20, 50),
    )
    assert [stretch[:4] for stretch in stretches] == [
        (0, 10, "data", "gap"),
        (10, 20, "data", "gap"),
        (20, 50, "data", "copy"),
        (50, 60, "data", "gap"),
        (60, 100, "forward", "gap"),
    ]


NODE = "autograd::engine::evaluate_function: MmBackward0"


def test_on_a_cpu_operations_are_the_work_and_the_rest_is_gaps():
    stretches, has_kernels = cut(
        Event(STEP, 0, 100),
        Event("aten::linear", 10, 30, sequence=1),
        Event("aten::addmm", 12, 28, sequence=1),
        Event("aten::expand", 13, 14),  # a view inside an operation belongs to it
        Event(NODE, 40, 70, sequence=1),
        Event("MmBackward0", 41, 69, sequence=1),
        Event("aten::mm", 45, 60),
        Event("Optimizer.step#SGD.step", 80, 95),
        Event("aten::_foreach_add_", 85, 90),
    )
    assert not has_kernels
    assert stretches == [
        (0, 12, "forward", "gap", ""),
        (12, 28, "forward", "matmul", "aten::addmm"),
        (28, 45, "backward", "gap", ""),
        (45, 60, "backward", "matmul", "aten::mm"),
        (60, 80, "optimizer", "gap", ""),
        (80, 85, "optimizer", "gap", ""),
        (85, 90, "optimizer", "pointwise", "aten::_foreach_add_"),
        (90, 95, "optimizer", "gap", ""),
        (95, 100, "optimizer", "gap", ""),
    ]


def test_what_saw_the_step_begin_and_not_end_is_not_around_it():
    stretches, _ = cut(Event("PythonDispatchMode", 0, 12), Event(STEP, 10, 100), Event("aten::mm", 11, 90, sequence=1))
    assert stretches[0] == (10, 11, "forward", "gap", "")
    assert stretches[1] == (11, 90, "forward", "matmul", "aten::mm")


def test_what_autograd_records_inside_a_node_is_recomputed():
    stretches, _ = cut(
        Event(STEP, 0, 100),
        Event(NODE, 10, 90, sequence=3),
        Event("MmBackward0", 10, 90, sequence=3),
        Event("aten::mm", 20, 40, sequence=7),  # forward, again
        Event(NODE, 41, 59, sequence=7),  # the reentrant checkpoint: a backward pass inside
        Event("aten::mm", 42, 58),
        Event("aten::mm", 60, 80),
    )
    work = [(start, phase) for start, _, phase, kind, _ in stretches if kind == "matmul"]
    assert work == [(20, "recompute"), (42, "backward"), (60, "backward")]


def test_waiting_for_data_is_a_gap_of_its_own_phase():
    stretches, _ = cut(
        Event(STEP, 0, 100),
        Event("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 10, 60),
        Event("aten::stack", 50, 55),
        Event("aten::mm", 80, 90, sequence=1),
    )
    assert stretches == [
        (0, 10, "data", "gap", ""),
        (10, 50, "data", "gap", ""),
        (50, 55, "data", "copy", "aten::stack"),
        (55, 60, "data", "gap", ""),
        (60, 80, "forward", "gap", ""),
        (80, 90, "forward", "matmul", "aten::mm"),
        (90, 100, "forward", "gap", ""),
    ]


def test_on_a_gpu_kernels_are_the_work_and_belong_to_what_launched_them():
    stretches, has_kernels = cut(
        Event(STEP, 0, 100),
        Event("aten::addmm", 1, 5, correlation=11, sequence=1),
        Event("cudaLaunchKernel", 2, 4, launched_by=11),
        Event(NODE, 6, 20, thread=2, sequence=1),
        Event("aten::mm", 7, 12, thread=2, correlation=12),
        kernel("nvjet_tst_128x256", 10, 40, launched_by=11),
        kernel("nvjet_tst_256x128", 50, 80, launched_by=12),
        kernel("mystery_gemm", 80, 85),
        Event("Optimizer.step#SGD.step", 40, 100, device=DeviceType.CUDA, annotation=True),
    )
    assert has_kernels
    assert stretches == [
        (0, 10, "forward", "gap", ""),
        (10, 40, "forward", "matmul", "aten::addmm"),
        (40, 50, "backward", "gap", ""),
        (50, 80, "backward", "matmul", "aten::mm"),
        (80, 85, "forward", "matmul", "mystery_gemm"),
        (85, 100, "forward", "gap", ""),
    ]


def test_communication_counts_where_no_other_kernel_runs():
    stretches, _ = cut(
        Event(STEP, 0, 100),
        Event("aten::mm", 1, 2, correlation=1),
        Event("nccl:all_reduce", 3, 4, correlation=2),
        kernel("gemm", 10, 30, launched_by=1),
        kernel("ncclDevKernel_AllReduce", 20, 60, launched_by=2),
        kernel("gemm", 50, 55, launched_by=1),
    )
    alone = [(start, end) for start, end, _, kind, _ in stretches if kind == "collective"]
    assert alone == [(30, 50), (55, 60)]


def test_on_a_cpu_it_counts_where_the_step_has_nothing_else_to_do():
    stretches, _ = cut(
        Event(STEP, 0, 100),
        Event("aten::mm", 10, 30, sequence=1),
        Event("gloo:all_reduce", 20, 60, thread=2),
        Event("aten::mm", 70, 90, sequence=2),
    )
    assert (30, 60, "communication", "collective", "gloo:all_reduce") in stretches
    assert (10, 30, "forward", "matmul", "aten::mm") in stretches


@pytest.mark.parametrize("seed", range(20))
def test_stretches_fill_the_step_whatever_runs(seed):
    rng = random.Random(seed)
    kernels = []
    for label in ["gemm", "ncclDevKernel", "elementwise"] * 8:
        start = rng.randint(-20, 110)
        kernels.append(kernel(label, start, start + rng.randint(0, 30)))
    stretches, _ = cut(Event(STEP, 0, 100), Event("data", 20, 40), Event("data", 50, 55), *kernels)
    assert stretches[0][0] == 0
    assert stretches[-1][1] == 100
    assert all(left[1] == right[0] for left, right in itertools.pairwise(stretches))
    busy = sum(any(k.start <= t < k.end for k in kernels) for t in range(100))
    assert sum(end - start for start, end, _, kind, _ in stretches if kind != "gap") == busy


def test_a_trace_without_a_step_is_refused():
    with pytest.raises(LookupError, match="no step"):
        step_stretches([Event("aten::mm", 0, 1)])


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("make", ARCHITECTURES, ids=lambda f: f.__name__)
def test_the_trace_and_the_dispatcher_see_the_same_operations_in_the_same_phases(make, recipe):
    torch.manual_seed(0)
    model, x, y = make()
    _, step = recipe(model)
    first_step(step, x, y)
    profiler, _ = _recorded(lambda: step(x, y), CPU)
    stretches, _ = step_stretches(profiler.profiler.kineto_results.events())
    timed = Counter((s.phase, s.kind, part_name(s.name)) for s in stretches if s.kind != "gap")
    seen = Counter({key: calls for key, (calls, _, _) in step_work(lambda: step(x, y)).items()})
    # A factory like `full` carries no sequence number, so that a trace cannot tell recomputing from going backward.
    blurred = {(phase, "copy", "aten::full") for phase in ("backward", "recompute")}
    seen, timed = (Counter({key: n for key, n in count.items() if key not in blurred}) for count in (seen, timed))
    assert seen.keys() <= timed.keys()
    # The operation at which recomputation stops begins and does not work; `torch.tensor` detaches below the dispatcher;
    # autocast's casts are inside of `cat`.
    assert {key[0] for key in timed - seen if key[2] != "aten::detach_"} <= {"recompute"}
    assert {key[2] for key in seen - timed} <= {"aten::_to_copy"}
