"""Check of a preemption notice: a handler that only notes the signal, and ranks that stop in the same step.

One observation serves all checks. It sends this process real signals, with handlers of its own beneath the answer's, so
that a signal that the answer does not handle ends nothing.
"""

import io
import os
import signal
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import torch
from torch import Tensor

from ..base import Check, Evidence

Preemption = Callable[[], Any]
SIGNALS = ("SIGTERM", "SIGUSR1")
OTHERS = ("SIGINT", "SIGUSR2")  # which a notice leaves alone


def _plain(flag: Any) -> Evidence:
    if not isinstance(flag, Tensor):
        return {"kind": type(flag).__name__}
    return {"kind": f"{flag.dtype}".removeprefix("torch."), "shape": list(flag.shape), "values": flag.tolist()}


def _signalled(seed: int, make: Preemption) -> Evidence:
    """Send each signal twice; return the flags, what the handlers did, the decisions, and the handlers at the end."""
    kept = {name: signal.getsignal(getattr(signal, name)) for name in SIGNALS + OTHERS}
    try:
        return {name: _one(name, make) for name in SIGNALS} | {"decisions": _decisions(make)}
    finally:
        for name, handler in kept.items():
            signal.signal(getattr(signal, name), handler)


def _send(number: int) -> str | None:
    """Send this process a signal; return the name of what its handler raised."""
    try:
        os.kill(os.getpid(), number)
    except BaseException as error:  # SystemExit and KeyboardInterrupt as well
        return type(error).__name__
    return None


def _one(name: str, make: Preemption) -> Evidence:
    number, missed = getattr(signal, name), []

    def beneath(*_: Any) -> None:
        missed.append(True)

    for each in SIGNALS:
        signal.signal(getattr(signal, each), beneath)
    others = [signal.getsignal(getattr(signal, each)) for each in OTHERS]
    notice, raised, written = make(), None, io.StringIO()
    flags, one, other = [_plain(notice.flag())], notice.flag(), notice.flag()
    with redirect_stdout(written), redirect_stderr(written):
        for _ in range(2):
            raised = _send(number) or raised
            flags.append(_plain(notice.flag()))
    notice.agreed(torch.tensor(1.0))
    flags.append(_plain(notice.flag()))
    alone = [signal.getsignal(getattr(signal, each)) == was for each, was in zip(OTHERS, others, strict=True)]
    notice.close()
    back = [signal.getsignal(getattr(signal, each)) is beneath for each in SIGNALS]
    early = make()  # the signal comes before the first flag
    raised = _send(number) or raised
    flags.append(_plain(early.flag()))
    early.close()
    shared = isinstance(one, Tensor) and (one is other or one.data_ptr() == other.data_ptr())
    return {
        "flags": flags,
        "missed": len(missed),
        "raised": raised,
        "back": back,
        "alone": alone,
        "shared": shared,
        "wrote": bool(written.getvalue()),
    }


def _decisions(make: Preemption) -> Evidence:
    """Return what ranks decide, whose signal came before the step's all-reduce, after it, or not at all."""
    decided = {}
    signal.signal(signal.SIGTERM, lambda *_: None)
    for case in ("no signal", "a signal"):
        notice = make()
        if case == "a signal":
            _send(signal.SIGTERM)
        decided[case] = [bool(notice.agreed(torch.tensor(total))) for total in (0.0, 1.0, 3.0)]
        notice.close()
    return decided


class NoticesBothSignals(Check):
    """The flag, one FP32 number, is 0 before SIGTERM or SIGUSR1 arrives and 1 from then on."""

    hint = (
        "signal.signal(signal.SIGTERM, handler) installs a handler; a handler takes two arguments.\n"
        "The flag is part of a tensor of gradients: torch.tensor([0.0]) or torch.tensor([1.0])."
    )
    probe = staticmethod(_signalled)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name in SIGNALS:
            if seen[name]["missed"]:
                return f"{name} did not reach a handler of yours. Does `Preemption()` install one for it?"
            whens = (
                "before a signal",
                "after a signal",
                "after a second signal",
                "after a call of `agreed`",
                "after a signal that came before the first call of `flag`",
            )
            for when, got, want in zip(whens, seen[name]["flags"], expected[name]["flags"], strict=True):
                if "shape" not in got:
                    return f"`flag()` returned {got['kind']}; expected a tensor in float32 with shape [1]."
                if (got["kind"], got["shape"]) != (want["kind"], want["shape"]):
                    return (
                        f"`flag()` returned {got['kind']} with shape {got['shape']}; expected float32 with shape [1]."
                    )
                if got["values"] != want["values"]:
                    return f"{name}: the flag is {got['values']} {when}; expected {want['values']}."
            if seen[name]["shared"]:
                return "two calls of `flag()` return the same memory; expected a new tensor from each call."
        return None


class HandlerOnlyNotes(Check):
    """The handler raises nothing, so the step that it interrupts goes on."""

    hint = "A handler runs between any two lines of the program. Set a flag in it, and nothing else."
    probe = staticmethod(_signalled)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name in SIGNALS:
            if seen[name]["raised"]:
                return (
                    f"{name}: the handler raises {seen[name]['raised']}, which ends the step that it interrupts. Only "
                    "note the signal in it."
                )
            if seen[name]["wrote"]:
                return (
                    f"{name}: the handler prints. If the signal interrupts another print, that may raise a "
                    "RuntimeError (reentrant call). Only note the signal in the handler."
                )
        return None


class RanksStopTogether(Check):
    """The decision follows from the total alone, which all ranks share: stop if at least one rank was signaled."""

    hint = (
        "All ranks have the same total after the all-reduce. The decision must not depend on anything else.\n"
        "A rank whose signal came after its flag was sent stops one step later, together with the others."
    )
    probe = staticmethod(_signalled)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        quiet, signaled = (seen["decisions"][case] for case in ("no signal", "a signal"))
        if quiet != signaled:
            return (
                "A rank with a signal and a rank without one decide differently for the same total: one leaves, and "
                "the other waits for it in the next all-reduce."
            )
        for total, got, want in zip((0, 1, 3), quiet, expected["decisions"]["no signal"], strict=True):
            if got != want:
                decided = "to stop" if got else "to go on"
                return f"When the flags sum to {total}, `agreed` decides {decided}; expected the opposite."
        return None


class PutsHandlersBack(Check):
    """`close()` restores the handlers that both signals had before."""

    hint = "signal.signal returns the handler that was installed before. Keep it."
    probe = staticmethod(_signalled)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name in SIGNALS:
            lost = [each for each, back in zip(SIGNALS, seen[name]["back"], strict=True) if not back]
            if lost:
                return f"close() did not restore the handler that {' and '.join(lost)} had before `Preemption()`."
            taken = [each for each, alone in zip(OTHERS, seen[name]["alone"], strict=True) if not alone]
            if taken:
                return f"`Preemption()` handles {' and '.join(taken)} as well; expected only SIGTERM and SIGUSR1."
        return None


PREEMPTION = (NoticesBothSignals, HandlerOnlyNotes, RanksStopTogether, PutsHandlersBack)
