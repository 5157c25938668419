"""Try one answer in a process of its own, which ends with the time it is given: some wrong answers never end."""

import contextlib
import io
import multiprocessing as mp
import os
import sys
import warnings
from multiprocessing.connection import Connection

from helpers.core.descendants import end_process
from helpers.exercises.base import Part
from helpers.exercises.checking import find_part
from helpers.ranks.rank import PRELOAD

from . import EXPECTED, expected_of, run_answers, verdicts

LIMIT = 120.0  # seconds a check, unless another limit is given
HANGS = "hangs"
_CONTEXT = mp.get_context("spawn" if sys.platform == "win32" else "forkserver")  # a fork of this process has no threads
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the server: what it forks cannot use threads that it has started


def judged(part: Part, source: str, seed: int, checks: list[str]) -> dict[str, str]:
    """Return, by check that fails, what is said of an answer's text.

    All checks of the part judge one run of it, or the first of `checks` that fails is the last one that is asked.
    """
    try:
        names = run_answers(source)
    except Exception as error:
        return {(checks or [part.checks[0].name()])[0]: f"does not run: {type(error).__name__}"}
    for only in checks or [""]:
        failed = {v.check: v.diagnosis or "" for v in verdicts(part.name, names, seed, only=only) if not v.passed}
        if failed:
            return failed
    return {}


def _child(pipe: Connection, answer: tuple[str, str, int], expected: dict, checks: list[str]) -> None:
    part, source, seed = answer
    EXPECTED.update({(part, seed, check): evidence for check, evidence in expected.items()})
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        found = judged(find_part(part), source, seed, checks)
    pipe.send(found)
    pipe.close()
    os._exit(0)


def try_answer(
    part: str, source: str, seed: int = 0, checks: list[str] | None = None, limit: float = 0.0
) -> dict[str, str]:
    """Judge the text of an answer by the checks of `part`.

    Args:
        checks: names, in the order in which they are asked until one fails; without it, all judge one run.
        limit: seconds.

    Returns:
        by the check that fails, its diagnosis; empty where the answer earns full points; {"hangs": ...} for one that
        takes longer.
    """
    names = [check.name() for check in find_part(part).checks]
    here, there = mp.Pipe(duplex=False)
    expected = expected_of(find_part(part), seed)
    if sys.platform != "win32":  # imported once, before the first trial, with what ranks of other tests want there
        _CONTEXT.set_forkserver_preload([__name__, f"helpers.exercises.{part.partition('.')[0]}", *PRELOAD])
    child = _CONTEXT.Process(target=_child, args=(there, (part, source, seed), expected, checks or []))
    child.start()
    there.close()
    try:
        if here.poll(limit or LIMIT * len(names)):
            return here.recv()
        return {HANGS: "no answer in time"}
    except EOFError:
        return {HANGS: "its process ended"}
    finally:
        end_process(child.pid)
        child.join()
