"""Ranks that compute get more time than ranks that wait, and what cloudpickle leaves behind gets to them."""

import functools
import pickle
import sys
from pathlib import Path

from helpers.ranks import run
from helpers.ranks.failure import RankError
from helpers.ranks.rank import _name_and_seconds
from helpers.ranks.run import _pickled, _Pulse

import pytest
import torch
from torch.autograd.function import once_differentiable


class Planted:
    """A rank that has taken so many seconds of a processor."""

    cpu_seconds = 0.0


@pytest.mark.parametrize(("taken", "at_work"), [(0.05, False), (0.5, True)])
def test_ranks_are_at_work_if_they_take_processor_time(monkeypatch, taken, at_work):
    now = [100.0]
    monkeypatch.setattr(run.time, "monotonic", lambda: now[0])
    ranks = [Planted(), Planted()]
    pulse = _Pulse(ranks)
    now[0] += run.PULSE / 2
    ranks[0].cpu_seconds = 50.0  # their start
    pulse.feel()
    assert not pulse.at_work  # the last look is not long enough ago
    now[0] += run.PULSE
    pulse.feel()
    assert pulse.at_work
    now[0] += 2 * run.PULSE
    ranks[1].cpu_seconds = taken
    pulse.feel()
    assert pulse.at_work is at_work


def shout_past_each_other():
    """Wait forever, while gloo's thread spins: the tensors that the messages are for are gone."""
    other = 1 - torch.distributed.get_rank()
    for _ in range(30):
        sent = torch.distributed.isend(torch.ones(3), other)
        torch.distributed.irecv(torch.empty(3), other)
        sent.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system does not tell the time of a thread")
def test_ranks_whose_transport_spins_are_not_at_work(monkeypatch):
    felt = []

    class Noted(_Pulse):
        def feel(self):
            super().feel()
            whole = sum(_name_and_seconds(Path(f"/proc/{rank.process.pid}/stat"))[1] for rank in self._ranks)
            felt.append((self.at_work, whole - self._taken))

    monkeypatch.setattr(run, "_Pulse", Noted)
    monkeypatch.setattr(run, "PULSE", 1.0)
    with pytest.raises(RankError, match="have not come back within 4 s"):
        run.run_ranks(shout_past_each_other, 2, device="cpu", timeout=4.0, measure=False, show=False)
    at_work, transport = felt[-1]
    assert transport > 0.2  # seconds that gloo's threads took
    assert not at_work


def made_here(body):
    """Return what `body` defines, in a module that a rank cannot import."""
    names = {"__name__": "answers", "functools": functools, "once_differentiable": once_differentiable, "torch": torch}
    exec(body, names)
    return names


def test_a_function_with_a_cache_gets_to_a_rank_and_begins_anew():
    names = made_here("@functools.lru_cache(maxsize=3)\ndef mask(t):\n    return torch.ones(t, t).triu(1)")
    names["mask"](2)
    again = pickle.loads(_pickled(names["mask"]))
    assert again.cache_parameters() == {"maxsize": 3, "typed": False}
    assert again.cache_info().currsize == 0
    assert torch.equal(again(4), names["mask"](4))


def test_a_cache_of_a_module_is_taken_by_its_name():
    assert pickle.loads(_pickled(functools.wraps)) is functools.wraps
    assert pickle.loads(_pickled(cached)) is cached


@functools.cache
def cached(x):
    return x


def test_once_differentiable_gets_to_a_rank():
    text = "class Twice(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        return 2 * x\n"
    text += "    @staticmethod\n    @once_differentiable\n    def backward(ctx, grad):\n        return 2 * grad\n"
    twice = pickle.loads(_pickled(made_here(text)["Twice"]))
    x = torch.ones(3, requires_grad=True)
    twice.apply(x).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]
