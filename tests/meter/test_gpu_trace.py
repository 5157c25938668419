"""The published traces: one step each, as the profiler exports it, in which one GPU is busy and the other is not."""

from helpers.exercises.reference.traces import diagnose, self_times, signs
from helpers.meter.gpu_trace import gpu_trace, gpu_trace_source

import pytest

GPUS = ("v100", "a100")


@pytest.mark.parametrize("gpu", GPUS)
def test_all_events_lie_in_the_one_step(gpu):
    events = gpu_trace(gpu)
    (step,) = [e for e in events if e["name"] == "step"]
    assert (step["cat"], step["ts"]) == ("user_annotation", 0)
    assert all(set(e) == {"ph", "cat", "name", "pid", "tid", "ts", "dur"} for e in events)
    assert all(e["ts"] >= 0 and e["ts"] + e["dur"] <= step["dur"] + 0.3 for e in events)
    assert [e["ts"] for e in events] == sorted(e["ts"] for e in events)
    assert 800 < sum(e["cat"] == "kernel" for e in events) < 1000
    assert len({(e["pid"], e["tid"]) for e in events}) >= 4  # the host's threads, and streams of the GPU


def test_a_busy_gpu_and_an_idle_one():
    seen = {gpu: signs(gpu_trace(gpu)) for gpu in GPUS}
    assert seen["v100"]["idle"] < 0.05
    assert 0.7 < seen["a100"]["idle"] < 0.8
    assert [diagnose(seen[gpu]) for gpu in GPUS] == ["healthy", "tiny"]


def test_launches_of_the_busy_gpu_wait_for_its_queue():
    launches = {
        gpu: self_times([e for e in gpu_trace(gpu) if e["cat"] == "cuda_runtime"])["cudaLaunchKernel"] for gpu in GPUS
    }
    assert launches["v100"] > 3 * launches["a100"]


def test_the_source_is_named():
    assert "A100" in gpu_trace_source("a100")
    assert "HolisticTraceAnalysis/blob/" in gpu_trace_source("v100")
    with pytest.raises(KeyError):
        gpu_trace("h100")
