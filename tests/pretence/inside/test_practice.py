"""The labs' checks say the same where there is a GPU."""

from helpers import DigitFiles, LoaderTimeline
from helpers.exercises.data_loading.prefetch import SendsFromPinnedMemory
from helpers.exercises.mixed_precision.safe import ForwardIsInFp32
from helpers.exercises.reference.data_loading import prefetched
from helpers.exercises.reference.mixed_precision import safe


def verdict(check, answer, reference):
    return check.judge(check.probe(0, answer), check.probe(0, reference))


def pins_in_vain(batches, depth, device):
    for batch in batches:
        for tensor in batch:
            tensor.pin_memory()
        yield tuple(tensor.cuda(non_blocking=True) for tensor in batch)


def test_what_was_sent_is_told_from_what_was_pinned():
    assert verdict(SendsFromPinnedMemory, prefetched, prefetched) is None
    assert "came from pinned memory" in verdict(SendsFromPinnedMemory, pins_in_vain, prefetched)


def test_a_function_that_is_safe_on_cuda_alone_is_told_from_one_that_is_safe_here():
    assert verdict(ForwardIsInFp32, safe, safe) is None
    assert "CUDA alone" in verdict(ForwardIsInFp32, lambda function, _: safe(function, "cuda"), safe)


def test_a_loader_pins_what_its_steps_take():
    batches = []
    line = LoaderTimeline.of(DigitFiles(), 4, 0, batches.append, batches=2)
    assert len(line.steps) == 2
    assert all(images.is_pinned() for images, _ in batches)
