"""Stages share a start of ranks, and one that fails costs the others nothing."""

from pathlib import Path

from helpers.exercises.checking import own_entry
from helpers.exercises.probing import stages
from helpers.exercises.probing.signals import Signals
from helpers.exercises.probing.stages import stages_on_ranks
from helpers.ranks.failure import RankError

import pytest
import torch.distributed as dist


def fine(_, number):
    return number + dist.get_rank()


def fails_on_rank_1(_, number):
    if dist.get_rank() == 1:
        raise ValueError("not today")
    return number


def signals(folder, _):
    mine = Signals(folder)
    mine.give("here")
    return mine.missing("here")


def test_a_stage_that_raises_costs_the_others_nothing():
    found = stages_on_ranks({"one": fine, "two": fails_on_rank_1, "three": fine, "four": signals}, 2, 5)
    assert list(found) == ["one", "two", "three", "four"]
    assert found["one"] == found["three"] == {"seen": [5, 6]}
    assert found["two"]["error"] == "RankError"
    assert "rank 1 raised ValueError: not today" in found["two"]["text"]
    assert found["four"] == {"seen": [[], []]}


class Planted:
    """In the place of ranks: fails at the stages that are named, by the kind of failure, and counts the starts."""

    def __init__(self, failures):
        self.failures, self.starts = failures, 0

    def __call__(self, work, world_size, names, begin, folder, args, timeout):
        self.starts += 1
        for number, name in enumerate(names):
            Path(folder, "0").write_text(str(number))
            if name in self.failures:
                raise self.failures[name]
        return [dict.fromkeys(names, rank) for rank in range(world_size)]


@pytest.mark.parametrize(
    ("failing", "entries", "starts"),
    [
        ("", ["seen", "seen", "seen", "seen"], 1),
        ("b", ["seen", "overdue", "seen", "seen"], 2),
        ("bc", ["seen", "overdue", "overdue", "stopped"], 3),
        ("abcd", ["overdue", "overdue", "stopped", "stopped"], 2),
    ],
)
def test_nobody_waits_for_ranks_more_than_twice(monkeypatch, failing, entries, starts):
    planted = Planted({name: RankError("too late", overdue=True) for name in failing})
    monkeypatch.setattr(stages, "on_ranks", planted)
    found = stages_on_ranks(dict.fromkeys("abcd", fine), 2)
    assert all(entry in found[name] for name, entry in zip("abcd", entries, strict=True))
    assert planted.starts == starts


def test_what_comes_after_an_answer_that_is_not_attempted_is_not_attempted(monkeypatch):
    monkeypatch.setattr(stages, "on_ranks", Planted({"b": NotImplementedError()}))
    found = stages_on_ranks(dict.fromkeys("abc", fine), 2)
    assert [entry.get("error") for entry in found.values()] == [None, "NotImplementedError", "NotImplementedError"]
    with pytest.raises(NotImplementedError):
        stages_on_ranks(dict.fromkeys("bc", fine), 2)


def test_a_check_judges_its_own_stage():
    check = type("Own", (), {"stage": "two"})
    failed = {"error": "ValueError", "text": "ValueError: no"}
    assert own_entry(check, {"seen": {"one": {"seen": 1}, "two": failed}}) is failed
    assert own_entry(check, failed) is failed
    check.stage = ""
    assert own_entry(check, {"seen": {"two": failed}}) == {"seen": {"two": failed}}
