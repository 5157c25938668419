"""The labs' checks say the same where there is a GPU."""

from helpers import DigitFiles, LoaderTimeline
from helpers.exercises.reference.data_loading import prefetched
from helpers.exercises.reference.mixed_precision import safe

from tests.mutants import verdicts


def diagnosis(part, check, **answers):
    (verdict,) = verdicts(part, answers, only=check)
    return verdict.diagnosis


def pins_in_vain(batches, depth, device):
    for batch in batches:
        for tensor in batch:
            tensor.pin_memory()
        yield tuple(tensor.to(device, non_blocking=True) for tensor in batch)


def test_what_was_sent_is_told_from_what_was_pinned():
    check = "data_loading.prefetch", "sends_from_pinned_memory"
    assert diagnosis(*check, prefetched=prefetched) is None
    assert "came from pinned memory" in diagnosis(*check, prefetched=pins_in_vain)


def test_a_function_that_is_safe_on_cuda_alone_is_told_from_one_that_is_safe_here():
    check = "mixed_precision.safe", "forward_is_in_fp32"
    assert diagnosis(*check, safe=safe) is None
    assert "CUDA alone" in diagnosis(*check, safe=lambda function, _: safe(function, "cuda"))


def test_a_loader_pins_what_its_steps_take():
    batches = []
    line = LoaderTimeline.of(DigitFiles(), 4, 0, batches.append, batches=2)
    assert len(line.steps) == 2
    assert all(images.is_pinned() for images, _ in batches)
