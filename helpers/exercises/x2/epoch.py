"""Checks of part 3: an epoch of accumulated steps that can stop and go on in the middle of a group."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ...meter.recorder import MemoryMeter
from ..base import Check, Evidence
from ..probing.distance import relative_distance
from ..probing.returned_loss import EXACT, wrong_loss
from .epochs import RATE, Case, Logged, Training, epoch, saved
from .spy import (
    ANOTHER_LOSS,
    CLIPPED,
    GROUPS,
    OLD_GRADIENTS,
    OWN_STATE,
    compared,
    opposed,
    rows_of_classes,
    smoothed,
    steep,
    weights,
    wrong_mode,
    wrong_rows,
)
from .stream import Stream

WIDE = 256  # the hidden layer where activations are measured: far more than inputs

FULL_GROUPS = {
    "one group of 4 micro-batches": Case([16] * 4, 4),
    "8 micro-batches, 4 per update": Case([16] * 8, 4),
    "micro-batches of different sizes, 3 per update": Case([16, 16, 5, 7, 16, 11], 3),
    "with weight decay, 2 per update": Case([16] * 6, 2, weight_decay=0.5),
    "1 per update": Case([16, 5, 1], 1),
}
ONE_CLAUSE_EACH = {
    "old gradients": Case([16] * 4, 4, old_gradients=True),
    "another loss": Case([16] * 4, 4, loss_fn=smoothed),
    "steep loss": Case([16] * 4, 4, loss_fn=steep),
    "momentum": Case([16] * 8, 2, momentum=0.9),
    "groups": Case([16] * 2, 2, parameter_groups=2),
    "a layer of the first group": Case([7, 16, 16, 16, 16, 16], 2, weight_decay=0.5, momentum=0.9, rare=True),
    "a long epoch": Case([4] * 24, 2),
}
WITH_A_REST = {
    "8 micro-batches, 4 per update": Case([16] * 8, 4, lr=0.0),
    "10 micro-batches, 4 per update": Case([16] * 10, 4, lr=0.0),
    "3 micro-batches, 4 per update": Case([16] * 3, 4, lr=0.0),
    "ragged, 3 per update": Case([16, 16, 16, 16, 5], 3, lr=0.0),
    "one row left over, 4 per update": Case([16] * 4 + [1], 4, lr=0.0),
    "the last micro-batch has one row, 4 per update": Case([16] * 6 + [1], 4, lr=0.0),
}
UNCUT = "stopped between two groups"
STOPPED = {
    "8 micro-batches, 4 per update, stopped after 2": Case([16, 9, 12, 16] * 2, 4, (2,)),
    "8 micro-batches, 4 per update, stopped after 7": Case([16, 9, 12, 16] * 2, 4, (7,)),
    "8 micro-batches, 4 per update, stopped after 1, then 1 more": Case([16, 9, 12, 16] * 2, 4, (1, 1)),
    "8 micro-batches, 4 per update, stopped after 2, then 4 more": Case([16, 9, 12, 16] * 2, 4, (2, 4), momentum=0.9),
    UNCUT: Case([16, 9, 12, 16] * 2, 4, (4,), momentum=0.9),
    "7 micro-batches, 4 per update, stopped in the last group": Case([16, 9, 12, 16, 5, 16, 3], 4, (5,)),
    "7 micro-batches, 4 per update, stopped after the last": Case([16, 9, 12, 16, 5, 16, 3], 4, (7,)),
    "8 micro-batches, 4 per update, stopped after the last": Case([16, 9, 12, 16] * 2, 4, (8,)),
    "3 micro-batches, 4 per update, stopped after each": Case([16, 9, 12], 4, (1, 1, 1)),
    "6 micro-batches, told to stop after 9": Case([16] * 6, 3, (9,)),
    "a layer that no micro-batch reaches, with weight decay": Case([16] * 4, 2, (1,), weight_decay=0.5, idle=True),
}
CANCELING = "2 micro-batches of nearly opposite gradients, stopped between them"
STOPPED[CANCELING] = Case([8, 16], 2, (1,), doubled=True, loss_fn=opposed)
ROUNDED = (
    f"{CANCELING}: the update or the loss of the group is wrong, and in other groups both are right. Which digits of "
    "the gradient and of the loss survive in the state? Save both in the dtype that the model computes in."
)
NO_GRADIENT = (
    "Only the first of three groups reaches one of the layers, and the updates of the others change its weight, too. A "
    "gradient of zeros lets momentum and weight decay move a parameter: after an update, set gradients to None."
)
NOTES = 1_000  # bytes of a state beside one gradient of each parameter


def _activations(train_epoch: Any, seed: int) -> int:
    """Return by how much the peak grows where a group has eight micro-batches in place of two."""
    peaks = []
    for accumulate in (2, 8):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(12, WIDE), nn.Tanh(), nn.Linear(WIDE, 5)).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        x, y = rows_of_classes(8 * 16)
        pairs = list(zip(x.split(16), y.split(16), strict=True))
        scheduler = Logged(optimizer, lambda _: 1.0)
        with MemoryMeter(model, optimizer, by_category=False) as meter:
            train_epoch(
                model, optimizer, scheduler, F.cross_entropy, lambda start, p=pairs: iter(p[start:]), accumulate
            )
        peaks.append(meter.peak_bytes)
    return peaks[1] - peaks[0]


def _wrong_feed(got: Evidence, want: Evidence) -> str | None:
    """Say how what the model was fed differs from what it should see, and whether the loader began elsewhere."""
    wrong = wrong_rows(got, want)
    for number, (mine, right) in enumerate(zip(got["calls"], want["calls"], strict=False), 1):
        if wrong and mine["first"] is not None and mine["first"] != right["first"]:
            return (
                f"call {number}: the loader was called with {mine['first']}, and the next micro-batch is number "
                f"{right['first']}. Count the micro-batches of this epoch; the schedule may have begun in an earlier "
                "one."
            )
    return wrong


def _wrong_stop(got: Evidence, want: Evidence, case: Case) -> str | None:
    """Say which call stopped elsewhere than after its number of micro-batches."""
    for number, (mine, right) in enumerate(zip(got["calls"], want["calls"], strict=False), 1):
        if mine["fed"] != right["fed"]:
            stop = (*case.stops, None)[number - 1]
            return (
                f"call {number} has stop_after={stop} and went through {mine['fed']} micro-batches; it should go "
                f"through {right['fed']}. Does stop_after count those of this call?"
            )
    return None


def _miscounted(got: Evidence, want: Evidence) -> str | None:
    if len(got["gradients"]) == len(want["gradients"]):
        return None
    return (
        f"The number of updates is {len(got['gradients'])}; it should be {len(want['gradients'])}: one per full group, "
        "and one for the micro-batches that are left at the end."
    )


def _wrong_ends(got: Evidence, want: Evidence, case: Case) -> str | None:
    """Say after which micro-batches of an epoch in several calls updates are made, where they should not be."""
    seen, right = (
        [events[:at].count("f") for at, letter in enumerate(events) if letter == "u"]
        for events in (got["events"], want["events"])
    )
    if seen == right:
        return None
    found = f"updates are made after micro-batches {seen} of the epoch; it should be {right}."
    if len(case.groups[-1]) < case.accumulate and seen == right[:-1]:
        if sum(case.stops) >= len(case.sizes):
            return f"{found} In the last call the loader has nothing left; an unfinished group gets its update there."
        return f"{found} The smaller group at the end has no update: see last_group_counts."
    return (
        f"{found} A group that an earlier call began continues in the next one: do you count micro-batches from the "
        "start of the epoch, or of the call?"
    )


def _wrong_gradient(got: Evidence, want: Evidence, group: int) -> str | None:
    """Say what is wrong with the gradient of one group."""
    seen, right = got["gradients"][group], want["gradients"][group]
    if relative_distance(seen, right) <= EXACT:
        return None
    if group:
        extra = torch.tensor(seen) - torch.tensor(right)
        before = torch.tensor(got["gradients"][group - 1])
        if torch.cosine_similarity(extra, before, dim=0) > 0.9999:
            return "gradients of the last update are still there: clear them after each update."
    return f"the gradient {compared(seen, right, 'the mean over the rows of the group')}."


def _wrong_return(got: Evidence, want: Evidence) -> str | None:
    """Say what is wrong with what a call returned, beside the losses themselves."""
    for number, (mine, right) in enumerate(zip(got["calls"], want["calls"], strict=False), 1):
        which = f"call {number}: " if len(want["calls"]) > 1 else ""
        if not mine["pair"]:
            return f"{which}return a pair: the list of losses, and the state or None."
        if mine["starts"] != right["starts"]:
            return f"{which}the loader was called {mine['starts']} times: call it once, with the number to start from."
        if mine["kind"] != "list":
            return f"{which}the losses are a {mine['kind']}; they should be a list with the mean loss of each group."
        if mine["ended"] != right["ended"]:
            returned = "None" if mine["ended"] else "a state"
            when = "the loader has ended" if right["ended"] else "it was stopped before the loader ended"
            return f"{which}{returned} is returned, although {when}."
    return None


def _wrong_losses(got: Evidence, want: Evidence) -> str | None:
    wrong = _wrong_return(got, want)
    if wrong:
        return wrong
    if len(got["losses"]) != len(want["losses"]):
        return f"{len(got['losses'])} losses came back; with one for each update there should be {len(want['losses'])}."
    for group, (mine, right) in enumerate(zip(got["losses"], want["losses"], strict=True), 1):
        wrong = wrong_loss(mine, right["value"])
        if wrong:
            return f"the loss of group {group}: {wrong}"
    return None


class EachGroupCounts(Check):
    """Each full group makes one update in which its rows weigh the same; at most two groups are held at a time."""

    points = 1
    hint = (
        "Each row of a group weighs 1 / (rows of the group), however the group is split into micro-batches; gradients "
        "are cleared before the first and after each update; take micro-batches from the loader as you need them."
    )

    @staticmethod
    def probe(seed: int, train_epoch: Any) -> Evidence:
        cases = FULL_GROUPS | ONE_CLAUSE_EACH
        seen = {name: epoch(train_epoch, seed, case) for name, case in cases.items()}
        return seen | {"activations": _activations(train_epoch, seed)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name, case in FULL_GROUPS.items():
            got, want = seen[name], expected[name]
            wrong = _wrong_feed(got, want) or _miscounted(got, want) or wrong_mode(got["calls"][0]["modes"])
            if wrong:
                return f"{name}: {wrong}"
            for group in range(len(case.groups)):
                wrong = _wrong_gradient(got, want, group)
                if wrong:
                    return f"{name}, group {group + 1}: {wrong}"
            if not relative_distance(got["moved"], want["moved"]) <= EXACT:
                return (
                    f"{name}: the gradients are right, but the weights differ from those that the optimizer's steps "
                    "give. Does anything else change the weights or the learning rate?"
                )
            wrong = _wrong_losses(got, want)
            if wrong:
                return f"{name}: {wrong}"
        clauses = {
            "old gradients": OLD_GRADIENTS,
            "another loss": ANOTHER_LOSS,
            "steep loss": CLIPPED,
            "momentum": OWN_STATE,
            "groups": GROUPS,
            "a layer of the first group": NO_GRADIENT,
        }
        for name, verdict in clauses.items():
            if not relative_distance(seen[name]["moved"], expected[name]["moved"]) <= EXACT:
                return verdict
        return EachGroupCounts._too_much(seen)

    @staticmethod
    def _too_much(seen: Evidence) -> str | None:
        """Say that more is held than the contract allows."""
        long = ONE_CLAUSE_EACH["a long epoch"]
        held, most = seen["a long epoch"]["calls"][0]["held"], 2 * long.accumulate
        if held > most:
            return (
                f"{held} of {len(long.sizes)} micro-batches were held at once, {long.accumulate} per update; two "
                f"groups are {most}. An epoch does not fit into memory: no list(loader(0)), and keep no micro-batch "
                "after its update."
            )
        more = 6 * 16 * WIDE * 8  # what six micro-batches more hold in the hidden layer
        if seen["activations"] > more / 2:
            return (
                f"With 8 micro-batches per update the peak is {seen['activations']:,} bytes higher than with 2: their "
                "graphs are alive together. Call backward() for each micro-batch before the next forward pass."
            )
        return None


class LastGroupCounts(Check):
    """Micro-batches left over at the end of an epoch form a smaller group with an update of its own."""

    points = 1
    hint = (
        "What is left when the loader ends is a group, too: one more update after the loop, each of its rows weighing "
        "1 / (rows of this group). If nothing is left, there is no extra update."
    )

    @staticmethod
    def probe(seed: int, train_epoch: Any) -> Evidence:
        return {name: epoch(train_epoch, seed, case) for name, case in WITH_A_REST.items()}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name, case in WITH_A_REST.items():
            got, want = seen[name], expected[name]
            left = len(case.groups[-1]) if len(case.sizes) % case.accumulate else 0
            rest = f"{left} are left over" if left else "nothing is left over"
            wrong = _miscounted(got, want) or _wrong_feed(got, want)
            if wrong:
                return f"{name}, {rest}: {wrong}"
            if left:
                wrong = _wrong_gradient(got, want, len(case.groups) - 1)
                if wrong and len(case.groups) > 1 and _wrong_gradient(got, want, 0):
                    wrong = f"{wrong} The first group, a full one, is wrong, too: see each_group_counts first."
                elif wrong and len(set(case.groups[-1])) > 1:
                    wrong = f"{wrong} Its micro-batches differ in size: do rows weigh alike, as in each_group_counts?"
                if wrong:
                    return f"{name}, the last group of {left}: {wrong}"
                if len(got["losses"]) != len(want["losses"]):
                    return f"{name}: the loss of the last group of {left} is not in the list."
                wrong = wrong_loss(got["losses"][-1], want["losses"][-1]["value"])
                if wrong:
                    return f"{name}, the loss of the last group of {left}: {wrong}"
        return None


class GoesOnInMidGroup(Check):
    """A run that stops anywhere and is continued by another process makes the same updates as an epoch in one call."""

    points = 1
    hint = (
        "Which parts of an unfinished group are in neither the weights nor the optimizer? All of them belong in the "
        "state.\n"
        "A group may be interrupted more than once, and the loader may have nothing left when the next call comes."
    )

    @staticmethod
    def probe(seed: int, train_epoch: Any) -> Evidence:
        return {name: epoch(train_epoch, seed, case) for name, case in STOPPED.items()}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name, case in STOPPED.items():
            got, want = seen[name], expected[name]
            wrong = _wrong_feed(got, want) or _wrong_ends(got, want, case) or _wrong_return(got, want)
            if wrong:
                return f"{name}: {wrong}"
            if name == CANCELING and (_wrong_gradient(got, want, 0) or _wrong_losses(got, want)):
                return ROUNDED
            for group in range(len(case.groups)):
                wrong = _wrong_gradient(got, want, group)
                if wrong and _wrong_gradient(seen[UNCUT], expected[UNCUT], 0):
                    wrong = f"{wrong} The same is true of a group that is not interrupted: see each_group_counts first."
                if wrong:
                    return f"{name}, group {group + 1}: {wrong}"
            if not relative_distance(got["moved"], want["moved"]) <= EXACT:
                return (
                    f"{name}: the gradients are right, but the weights differ from those that the optimizer's steps "
                    "give. Does a parameter without a gradient get one?"
                )
            wrong = _wrong_losses(got, want) or _wrong_stop(got, want, case)
            if wrong:
                return f"{name}: {wrong}"
        return None


class StateIsASnapshot(Check):
    """The state loads with weights_only=True, holds no micro-batch, and no later training changes it."""

    points = 1
    hint = (
        "Numbers, strings, tensors, lists and dicts go through torch.save and torch.load(weights_only=True).\n"
        "backward() adds to .grad in place: what else refers to this tensor? Clone on the way out and on the way in."
    )

    @staticmethod
    def probe(seed: int, train_epoch: Any) -> Evidence:
        case = Case([16] * 6 + [40], 6, momentum=0.9)
        training = Training(seed, case)
        x, y = rows_of_classes(sum(case.sizes))

        def call(training: Training, state: Any, stop: int | None) -> Any:
            stream = Stream(x, y, case.sizes, training.spy)
            return train_epoch(*training.parts, case.loss_fn, stream, case.accumulate, state, stop)

        _, state = call(training, None, 3)
        kept = saved(state)
        checkpoint = copy.deepcopy(training.state())
        seen: Evidence = {"size": _bytes_of(kept), "gradients": sum(p.nbytes for p in training.model.parameters())}
        F.cross_entropy(training.model(x), y).backward()  # the same process goes on, by a loop of another kind
        call(training, state, None)
        call(Training(seed + 2, case), None, 2)  # another run is stopped before this one goes on: no global may hold it
        seen["later"] = _same(state, kept)
        moved = []
        given = copy.deepcopy(kept)
        for _ in range(2):  # two processes go on from one file
            training = Training(seed + 1, case)
            training.load(copy.deepcopy(checkpoint))
            call(training, given, None)  # from the very same state
            moved.append(weights(training.model))
        seen |= {"moved": moved, "given": _same(given, kept)}
        training = Training(seed, case)
        call(training, None, None)
        seen["in one call"] = weights(training.model)
        training = Training(seed, case)
        _, state = call(training, None, 3)
        checkpoint, kept = copy.deepcopy(training.state()), saved(state)
        training = Training(seed + 1, case)
        training.load(checkpoint)
        call(training, kept, None)  # at once: no other call in between
        return seen | {"in two calls": weights(training.model)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        most = seen["gradients"] + NOTES
        if seen["size"] > most:
            return (
                f"Saved in the middle of a group, the state has {seen['size']:,} bytes; one gradient of each parameter "
                f"and a few numbers are {most:,}. It must not hold a micro-batch or a second set of gradients."
            )
        if not seen["given"]:
            return (
                "A call changed the state that it was given, so a second process that continues from it gets other "
                "numbers. Clone the gradients that you take from it."
            )
        if not seen["later"]:
            return (
                "The state changed after it was returned, while the same process went on training. Does it hold "
                "tensors that are still in use?"
            )
        for number, (got, want) in enumerate(zip(seen["moved"], expected["moved"], strict=True), 1):
            if not relative_distance(got, want) <= EXACT:
                return StateIsASnapshot._why_wrong(number, seen, expected)
        return None

    @staticmethod
    def _why_wrong(number: int, seen: Evidence, expected: Evidence) -> str:
        """Name the simplest run whose weights are wrong: an epoch in one call, in two, or with others between."""
        if not relative_distance(seen["in one call"], expected["in one call"]) <= EXACT:
            return (
                "Only partly checked until an epoch in one call is right: of 7 micro-batches, 6 per update, the last "
                "is a group of its own, and the weights are wrong. See each_group_counts and last_group_counts."
            )
        if not relative_distance(seen["in two calls"], expected["in two calls"]) <= EXACT:
            return (
                "Only partly checked until a stopped run is right: an epoch in one call gives the right weights, and "
                "stopped after 3 micro-batches, 6 per update, it gives others. See goes_on_in_mid_group."
            )
        return (
            f"Two calls continue from the same state, after calls for other runs; the weights after call {number} are "
            "wrong, and right where no other run comes between. Does the state itself hold all that an unfinished "
            "group needs? A global variable, or an attribute of a function, is another process's own."
        )


def _bytes_of(state: Any) -> int:
    """Return the bytes of all tensors in a state, whole storages, and 8 for each number."""
    if isinstance(state, torch.Tensor):
        return state.untyped_storage().nbytes()
    if isinstance(state, dict):
        state = list(state.values())
    return sum(map(_bytes_of, state)) if isinstance(state, list | tuple) else 8


def _same(a: Any, b: Any) -> bool:
    """Whether two states hold the same numbers."""
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return a == b


class SchedulerStepsWithTheOptimizer(Check):
    """The learning rate moves once for each update, right after it, however the epoch is cut into calls."""

    points = 1
    hint = (
        "A schedule counts updates: scheduler.step() belongs right after optimizer.step().\n"
        "A call that stops in the middle of a group makes no update for it, so it does not move the schedule."
    )

    @staticmethod
    def probe(seed: int, train_epoch: Any) -> Evidence:
        sizes = [8] * (4 * (2 + seed % 4) + 1 + seed % 3)
        cases = {
            "in one call": Case(sizes, 4, falls=True),
            "stopped in a group": Case(sizes, 4, (6,), falls=True),
            "stopped between groups, then after each micro-batch": Case(sizes, 4, (4, 1, 1), falls=True),
        }
        seen = {name: epoch(train_epoch, seed, case) for name, case in cases.items()}
        return {name: {key: one[key] for key in ("rates", "events")} for name, one in seen.items()}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name in expected:
            wrong = SchedulerStepsWithTheOptimizer._wrong(seen[name])
            if wrong:
                return f"An epoch {name}: {wrong}"
        return None

    @staticmethod
    def _wrong(seen: Evidence) -> str | None:
        events = seen["events"]
        updates, moves = events.count("u"), events.count("s")
        if not updates:
            return "the optimizer never stepped, so there is nothing to schedule."
        if moves != updates:
            return (
                f"after {events.count('f')} micro-batches and {updates} updates, the last of a smaller group, the "
                f"scheduler has moved {moves} times; the schedule counts updates."
            )
        if events.count("us") != updates:
            return (
                "the scheduler moves as often as the optimizer, but not right after each update. Call "
                "scheduler.step() after optimizer.step(), each time."
            )
        for update, rate in enumerate(seen["rates"]):
            right = RATE / (1 + update)
            if not abs(rate - right) <= 1e-9:
                return (
                    f"the learning rate of update {update + 1} was {rate:.3g}; it should be {right:.3g}. "
                    "Does the scheduler step right after the optimizer, each time?"
                )
        return None


EPOCH = (EachGroupCounts, LastGroupCounts, GoesOnInMidGroup, StateIsASnapshot, SchedulerStepsWithTheOptimizer)
