"""The labs' checks say the same where there is a GPU."""

from helpers import DigitFiles, LoaderTimeline
from helpers.exercises.data_loading.parcel import Parcel
from helpers.exercises.probing.two_devices import OnHost, OnRank, watch_devices
from helpers.exercises.reference.data_loading import prefetched

import torch
from torch import Tensor

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


def test_a_loader_pins_what_its_steps_take():
    batches = []
    line = LoaderTimeline.of(DigitFiles(), 4, 0, batches.append, batches=2)
    assert len(line.steps) == 2
    assert all(images.is_pinned() for images, _ in batches)


def test_a_parcel_goes_to_the_current_gpu():
    assert Parcel.of(3, []).cuda().place == "cuda"


def test_what_a_data_set_holds_meets_what_a_model_returns():
    met = watch_devices(torch.nn.Linear(2, 2))
    hosts, ranks = (torch.ones(2).as_subclass(kind) for kind in (OnHost, OnRank))
    _ = hosts.to(torch.device("cpu"), non_blocking=True) + ranks
    assert not met
    _ = hosts + ranks
    assert met == ["add"]
    assert [type(x) for x in (hosts.cpu(), ranks.cpu(), hosts.cuda(), hosts.type_as(ranks))] == [OnHost, *[Tensor] * 3]
