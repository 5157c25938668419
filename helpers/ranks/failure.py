"""Which rank failed, and what the others were doing then.

In a distributed run the rank that complains is seldom the one to blame: the others hang in a collective until a timeout
far away. So the report names the first rank that raised or died, with its own traceback, and the place where each of
the others stands.
"""

import linecache
import os
import re
import traceback
from collections.abc import Sequence

from ..core.files import PACKAGE
from .rank import Rank
from .worker import Frame

# A call of gloo returns when the message has arrived; one of NCCL, when it has been queued on the GPU.
QUEUED = "(On GPUs a call only queues its collective: a rank may have gone on, and waits where it needs a result.)"
# What gloo says, and the same for people who have not read its source.
_IN_WORDS = (
    (
        re.compile(r"preamble\.length <= op\.nbytes\. (\d+) vs (\d+)"),
        "a message of {} bytes came where {} bytes were to be received. Compare dtype and shape of what is sent and of "
        "what receives it, and the order of the messages.",
    ),
    (
        re.compile(r"Pair is not connected"),
        "a message from this rank to itself, which gloo cannot send. Which rank is the next one? A group of one has "
        "none.",
    ),
    (re.compile(r"Connection (?:reset|closed) by peer"), "the rank at the other end of a message had ended."),
)


class RankError(RuntimeError):
    """A rank raised, died, or did not come back in time; the message says which, where, and what the others did.

    Attributes:
        raised: the name of the exception that a rank raised, "" if none did.
        overdue: whether ranks were ended because their time was over.
    """

    def __init__(self, message: str, raised: str = "", overdue: bool = False) -> None:
        super().__init__(message)
        self.raised, self.overdue = raised, overdue


def failure(ranks: Sequence[Rank]) -> RankError | None:
    """Say which rank failed, with its own traceback; None when none has."""
    for rank in ranks:
        if rank.kind == "died":
            text = f"rank {rank.number} died (exit code {rank.outcome[1]})"
            return RankError("\n".join([text, *_last_words(rank), *_others(ranks, rank)]))
    for rank in ranks:
        if rank.kind == "error":
            _, frames, message = rank.outcome
            learners = [frame for frame in frames if not _ours(frame)]
            text = f"rank {rank.number} raised {_in_words(message)}\n{_lines(learners or frames)}"
            return RankError("\n".join([text, *_others(ranks, rank)]), message.partition(":")[0])
    return None


def _last_words(rank: Rank) -> list[str]:
    """Return the last lines that native code of a rank has printed, in words where they are gloo's."""
    text = rank.log.read_text(errors="replace").strip() if rank.log.exists() else ""
    words = _in_words(text)
    return [words] if words != text else text.splitlines()[-10:]


def _in_words(message: str) -> str:
    """Return what an error of gloo means, behind the name of the exception; other messages as they are."""
    for pattern, words in _IN_WORDS:
        if found := pattern.search(message):
            kind = re.match(r"\w+: ", message)
            return (kind[0] if kind else "") + words.format(*found.groups())
    return message


def overdue(ranks: Sequence[Rank], limit: float) -> RankError:
    """Say which ranks have not come back within `limit` seconds, and what each rank is doing."""
    late = [str(rank.number) for rank in ranks if not rank.outcome]
    subject = f"rank {late[0]} has" if len(late) == 1 else f"ranks {', '.join(late)} have"
    return RankError("\n".join([f"{subject} not come back within {limit:g} s", *_others(ranks, None)]), overdue=True)


def _others(ranks: Sequence[Rank], cause: Rank | None) -> list[str]:
    """Return what each rank but `cause` was doing, a line or a few each."""
    lines = [f"rank {rank.number}: {_activity(rank)}" for rank in ranks if rank is not cause]
    return [*lines, QUEUED] if any(rank.device == "cuda" for rank in ranks) else lines


def _activity(rank: Rank) -> str:
    frames, called = rank.position or ([], [])
    progress = ""
    if called:
        count = f"{len(called)} collectives, the last one" if len(called) > 1 else "one collective,"
        progress = f"; it has called {count} {called[-1]}"
    match rank.kind:
        case "result":
            return f"had finished{progress}"
        case "died":
            return "died as well"
        case "error":
            return f"raised {_in_words(rank.outcome[2])}"
    if not rank.position:
        return "did not answer: busy in native code, or not started yet"
    learners = [i for i, frame in enumerate(frames) if "site-packages" not in frame[0] and not _ours(frame)]
    at = learners[-1] if learners else len(frames) - 1
    distributed = [f[2] for f in frames if f"torch{os.sep}distributed" in f[0] and _public(f)]
    inside = distributed[-1:] or [frame[2] for frame in frames[at + 1 :] if not frame[2].startswith("_")][:1]
    text = f"in {inside[0]}" if inside else "at this line"
    return f"{text}{progress}\n{_lines(frames[at : at + 1])}"


def _ours(frame: Frame) -> bool:
    """Whether a frame is the course's own, which says nothing to a learner."""
    return frame[0].startswith(str(PACKAGE))


def _public(frame: Frame) -> bool:
    return not frame[2].startswith(("_", "wrapper"))


def _lines(frames: list[Frame]) -> str:
    """Format a stack; the source of notebook cells is known here and not in the rank."""
    linecache.checkcache()
    return "".join(traceback.StackSummary.from_list([(*frame, None) for frame in frames]).format()).rstrip()
