"""Synthetic traces of slow and healthy steps, and the pieces that they consist of. Times are in nanoseconds."""

import random

from .made_trace import Event, MadeTrace

ILLNESSES = ("synchronizes", "copies", "tiny", "healthy")
BUSY_GPU = ("12 reads beside a busy GPU", "a copy that waits for a busy GPU", "copies behind kernels")


def operations(made: MadeTrace, count: int, length: int, gap: int) -> None:
    """Write operations of about `length`, each with another inside it and a wrapper around, and `gap` between them."""
    for _ in range(count):
        names = ("nn.Module: Linear", "aten::linear", "aten::addmm")
        made.run(*names, nanoseconds=_about(made, length), before=90, after=60)
        made.gap(gap)


def values_read(made: MadeTrace, count: int, wait: int, gpu: bool = False) -> None:
    """Write comparisons, each followed by a read of its result that takes `wait`; on a GPU the host waits for it."""
    names = ("aten::is_nonzero", "aten::item", "aten::_local_scalar_dense", *["cudaStreamSynchronize"] * gpu)
    for _ in range(count):
        made.run("aten::eq", nanoseconds=_about(made, 2_000))
        made.run(*names, nanoseconds=wait, before=200, after=100)
        made.gap(_about(made, 1_500))


def counters_read(made: MadeTrace, count: int) -> None:
    """Write reads of numbers in the host's memory, as AdamW reads its step counters, and a copy that waits."""
    for _ in range(count):
        made.run("aten::item", "aten::_local_scalar_dense", nanoseconds=_about(made, 900), before=200, after=100)
        made.run("aten::to", "aten::copy_", "cudaStreamSynchronize", nanoseconds=_about(made, 700), before=90, after=60)


def copy(made: MadeTrace, length: int) -> None:
    """Write a copy of about `length`, and the operations that call it."""
    made.run("aten::to", "aten::_to_copy", "aten::copy_", nanoseconds=_about(made, length), before=400, after=300)


def converting_copy(made: MadeTrace, length: int) -> None:
    """Write a copy that also converts: on CUDA `aten::copy_` calls itself then."""
    names = ("aten::to", "aten::_to_copy", "aten::copy_", "aten::copy_")
    made.run(*names, nanoseconds=_about(made, length), before=400, after=300)


def transfer(made: MadeTrace, start: int, end: int) -> None:
    """Write a transfer from the host to the GPU."""
    made.write("Memcpy HtoD (Pageable -> Device)", start, end, 7, "gpu_memcpy")


def kernels(made: MadeTrace, start: int, count: int, length: int, gap: int) -> None:
    """Write kernels of a GPU from `start` on; a second stream joins every third one and runs on into the gap."""
    at = start
    for i in range(count):
        end = at + _about(made, length)
        made.write("ampere_sgemm_128x64_tn", at, end, 7, "kernel")
        if i % 3 == 2:
            made.write("vectorized_elementwise_kernel", at + (end - at) // 3, end + gap // 2, 20, "kernel")
        at = end + gap
    made.now = max(made.now, at + 2_000)


def sick(rng: random.Random, illness: str, gpu: bool) -> list[Event]:
    """Return the trace of a step with the problem that `illness` names."""
    made = MadeTrace(rng)
    start = made.now
    made.gap(2_000)
    long, few = 400_000, rng.randint(6, 12)
    if illness == "healthy":
        operations(made, few, 8_000 if gpu else long, 3_000)
        values_read(made, rng.randint(0, 3), 2_000, gpu)
    elif illness == "synchronizes":
        values_read(made, rng.randint(30, 60), 25_000 if gpu else 2_500, gpu)
    elif illness == "copies":
        operations(made, few, 6_000 if gpu else 40_000, 2_500)
        (converting_copy if gpu else copy)(made, 900_000)
        values_read(made, rng.randint(0, 3), 2_000, gpu)
    else:
        operations(made, rng.randint(80, 160), 3_000, 4_500)
        if gpu:
            counters_read(made, rng.randint(12, 30))
    if gpu:
        lengths = {"healthy": (few, long, 1_500), "tiny": (60, 2_000, 7_000)}
        kernels(made, start + 4_000, *lengths.get(illness, (20, 3_000, 9_000)))
    made.gap(2_000)
    made.step_from(start)
    if gpu:
        made.write("step", start + 4_000, made.now - 3_000, 7, "gpu_user_annotation")
    return made.shuffled()


def busy_gpu(rng: random.Random, case: str) -> list[Event]:
    """Return the trace of a step whose GPU is busy nearly all the time: nothing in its loop needs a cure."""
    made = MadeTrace(rng)
    start = made.now
    made.gap(2_000)
    operations(made, 8, 6_000, 2_000)
    if case == "12 reads beside a busy GPU":
        values_read(made, 12, 240_000, gpu=True)  # each waits for the kernels before it
    elif case == "a copy that waits for a busy GPU":
        converting_copy(made, 2_900_000)
    else:
        for _ in range(6):
            copy(made, 30_000)
            transfer(made, made.now - 20_000, made.now + 300_000)
            made.gap(330_000)
    busy, end = 60, made.now
    each = (end - start - 6_000) // busy
    for number in range(busy):
        at = start + 4_000 + number * each
        made.write("ampere_sgemm_128x64_tn", at, at + round(0.985 * each), 7, "kernel")
    made.gap(2_000)
    made.step_from(start)
    return made.shuffled()


def _about(made: MadeTrace, nanoseconds: int) -> int:
    return round(nanoseconds * made.rng.uniform(0.8, 1.25))
