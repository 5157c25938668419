"""The meter beside other things: meters in meters, profilers, threads, errors; and that it changes no numbers."""

import threading
import time
import warnings

from helpers import MemoryMeter, MiB, SmallGPT
from helpers.meter.allocator_log import AllocatorLog

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile

from .training import CPU, cnn, gpt, training_step


def test_counted_where_a_profiler_is_already_running():
    with profile(activities=[ProfilerActivity.CPU]) as outer, MemoryMeter(device=CPU) as meter:
        a = torch.empty(MiB, dtype=torch.uint8)
        b = torch.empty(MiB, dtype=torch.uint8)
        del a
    assert meter.method == "counted"
    assert meter.peak_bytes == 2 * MiB
    assert any(event.name == "aten::empty" for event in outer.events())  # its recording is whole
    del b


def test_an_exception_leaves_the_meter_usable():
    class Boom(Exception):
        pass

    with pytest.raises(Boom), MemoryMeter(device=CPU) as meter:
        keep = torch.empty(MiB, dtype=torch.uint8)
        raise Boom
    assert meter.peak_bytes == keep.nbytes
    with MemoryMeter(device=CPU) as again:
        torch.empty(2 * MiB, dtype=torch.uint8)
    assert again.peak_bytes == 2 * MiB


def test_meters_nest():
    model, x, y = gpt()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    training_step(model, optimizer, x, y, None)
    with MemoryMeter(model, optimizer) as whole:
        loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
        loss.backward()
        with MemoryMeter() as step:
            optimizer.step()
        optimizer.zero_grad()
        with MemoryMeter(device=CPU) as empty:
            pass
    assert whole.method == step.method == empty.method == "allocator"
    assert "optimizer step" in step.peak_at
    assert "optimizer step" not in whole.peak_at
    assert step.peak_bytes < whole.peak_bytes
    weights = sum(p.nbytes for p in model.parameters())
    assert step.at_peak["gradients"] == step.at_peak["parameters"] == weights
    assert empty.peak_bytes == pytest.approx(3 * weights, rel=0.05)  # parameters and two moments, and no gradients


def test_a_nested_meter_leaves_the_outer_one_whole():
    def run(nested):
        model, x, y = cnn()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with MemoryMeter(model, optimizer) as meter:
            for _ in range(2):
                if nested:
                    with MemoryMeter(model, optimizer):
                        training_step(model, optimizer, x, y, None)
                else:
                    training_step(model, optimizer, x, y, None)
        return meter.peak_bytes, meter.at_peak

    assert run(nested=True) == run(nested=False)


@pytest.mark.slow
def test_a_step_costs_less_than_half_as_much_again():
    model = SmallGPT(layers=4, width=256)
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(256, (16, 128))
    step = lambda: training_step(model, optimizer, ids, ids, None)  # noqa: E731
    step()
    plain, metered = [], []
    for _ in range(
        7
    ):  # alternately, in seconds of the processor, so that a busy machine disturbs neither; the best of each
        start = time.process_time()
        step()
        plain.append(time.process_time() - start)
        with MemoryMeter(model, optimizer):
            start = time.process_time()
            step()
            metered.append(time.process_time() - start)
    assert min(metered) < 1.5 * min(plain)


def test_a_meter_changes_no_numbers():
    def weights(metered):
        torch.manual_seed(0)
        model, x, y = gpt()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            if metered:
                with MemoryMeter(model, optimizer):
                    training_step(model, optimizer, x, y, torch.bfloat16)
            else:
                training_step(model, optimizer, x, y, torch.bfloat16)
        return torch.cat([p.flatten() for p in model.parameters()])

    assert torch.equal(weights(True), weights(False))


def test_in_place_changes_of_saved_tensors_are_still_errors():
    a = torch.randn(8, requires_grad=True)
    with MemoryMeter(device=CPU):
        b = a.exp()
        b.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            b.sum().backward()


def test_gradients_of_gradients_are_unchanged():
    def second_derivative():
        x = torch.linspace(-1, 1, 5, requires_grad=True)
        (first,) = torch.autograd.grad(x.tanh().pow(3).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    expected = second_derivative()
    with MemoryMeter(device=CPU):
        assert torch.equal(second_derivative(), expected)


def test_entering_twice_is_refused_and_harms_nothing():
    meter, model = MemoryMeter(device=CPU), nn.Linear(4, 4)
    with meter, pytest.raises(RuntimeError, match="already measuring"), meter:
        pass
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"), pytest.raises(RuntimeError), MemoryMeter(model):
        pass
    assert not model._forward_hooks
    assert not torch.autograd._profiler_enabled()
    with MemoryMeter(model) as again:
        model(torch.ones(2, 4))
    assert again.method == "allocator"
    with MemoryMeter(device=CPU), pytest.raises(RuntimeError, match="wait its turn"):
        MemoryMeter(device=torch.device("meta")).__enter__()


def test_a_meter_in_another_thread_counts_and_harms_nothing():
    results = []

    def work():
        with MemoryMeter(device=CPU) as meter:
            keep = torch.empty(MiB, dtype=torch.uint8)
        results.append((meter.method, meter.peak_bytes, keep.nbytes))

    with MemoryMeter(device=CPU) as meter:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        keep = torch.empty(2 * MiB, dtype=torch.uint8)
    assert results == [("counted", MiB, MiB)]
    assert meter.method == "allocator"
    assert meter.peak_bytes >= keep.nbytes
    assert not torch.autograd._profiler_enabled()


def test_a_meter_can_be_used_again_and_each_block_has_its_profile():
    meter = MemoryMeter(device=CPU)
    with meter as first:
        torch.empty(8 * MiB, dtype=torch.uint8)
    with meter as second:
        torch.empty(MiB, dtype=torch.uint8)
    assert (first.peak_bytes, second.peak_bytes) == (8 * MiB, MiB)
    assert meter.profile is second


def test_a_figure_asked_of_the_meter_itself_is_an_error_that_helps():
    meter = MemoryMeter(device=CPU)
    for name in ("peak_bytes", "at_peak", "plot"):
        with pytest.raises(AttributeError, match=f"meter.profile.{name}"):
            getattr(meter, name)
    assert not hasattr(meter, "nonesuch")


def test_a_profiler_inside_the_block_makes_it_counted():
    with MemoryMeter(device=CPU) as meter:
        with profile(activities=[ProfilerActivity.CPU]):
            pass
        keep = torch.empty(MiB, dtype=torch.uint8)
    assert meter.method == "counted"
    assert meter.peak_bytes == keep.nbytes


def test_all_of_the_log_hangs_below_one_event_of_the_cpu(monkeypatch):
    """PyTorch drops a tree of events whose root is a GPU's, such as memory that is freed between two operations."""
    roots, read = [], AllocatorLog._read

    def keep(log):
        roots.extend(log._profiler.profiler.kineto_results.experimental_event_tree())
        return read(log)

    monkeypatch.setattr(AllocatorLog, "_read", keep)
    with MemoryMeter(device=CPU) as profile:
        x = torch.ones(1000)
        del x
        torch.ones(10)
    assert profile.method == "allocator"
    assert [root.name for root in roots if root.start_tid == roots[0].start_tid] == ["MemoryMeter"]


def test_reading_the_log_makes_no_python_events(monkeypatch):
    """They take longer than all the rest of a measurement, and nobody reads them."""
    parsed = []
    monkeypatch.setattr(torch.autograd.profiler.profile, "_ensure_function_events", parsed.append)
    with MemoryMeter(device=CPU) as meter:
        a = torch.empty(MiB, dtype=torch.uint8)
    assert (meter.method, meter.peak_bytes, parsed) == ("allocator", MiB, [])
    del a


def test_a_profiler_that_warns_of_lost_events_warns_nobody(monkeypatch, recwarn):
    start = torch.autograd.profiler.profile._prepare_trace

    def warns(profiler):
        warnings.warn("Warning: Profiler clears events at the end of each cycle.", stacklevel=2)
        start(profiler)

    monkeypatch.setattr(torch.autograd.profiler.profile, "_prepare_trace", warns)  # as in PyTorch 2.10 to 2.12
    with MemoryMeter(device=CPU) as meter:
        a = torch.empty(MiB, dtype=torch.uint8)
    assert (meter.peak_bytes, [str(warning.message) for warning in recwarn]) == (MiB, [])
    del a


def test_a_machine_that_is_busy_while_the_clocks_are_aligned_shifts_nothing(monkeypatch):
    empty = torch.empty

    def late(*args, **options):
        time.sleep(0.003)  # another process has its turn before the allocation
        return empty(*args, **options)

    monkeypatch.setattr(torch, "empty", late)
    with MemoryMeter(device=CPU) as profile:
        monkeypatch.undo()
        for _ in range(50):
            torch.ones(50_000).sum()  # gone long before the 3 ms are over
    assert "inputs and other" not in {x.category for x in profile.lifetimes}
