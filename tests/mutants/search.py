"""Look for wrong answers that get full points: `python -m tests.mutants.search x2 --budget 300`.

Edits of the reference and of right answers are tried in an order drawn from the seed until the seconds are spent. What
gets full points is listed: it is either no mistake, then `equivalent.py` says why, or a check is missing.
"""

import argparse
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass

from helpers.exercises.checking import find_part

from . import reference, reference_text, topics, verdicts
from .edits import Edit, edits
from .equivalent import EQUIVALENT
from .trial import try_answer


@dataclass(frozen=True)
class _Candidate:
    part: str
    origin: str  # the answer that was edited
    edit: Edit


def _candidates(exercise: str, wanted: str) -> list[_Candidate]:
    """Return all edits of the answers to `exercise`, of the part called `wanted` if there is one."""
    answers = topics()[exercise]
    texts = {"reference": reference_text(exercise)} | answers.right
    found = []
    for part in _parts(exercise):
        if wanted in ("", part.name):
            for origin, text in texts.items():
                found += [_Candidate(part.name, origin, edit) for edit in edits(text, part.answers)]
    return found


def _parts(exercise: str) -> list:
    module = __import__(f"helpers.exercises.{exercise}", fromlist=["PARTS"])
    return list(module.PARTS)


def search(exercise: str, budget: float, seed: int = 0, wanted: str = "") -> tuple[int, list[_Candidate]]:
    """Try edits for `budget` seconds; return how many, and those that get full points and are not known to be right."""
    candidates = _candidates(exercise, wanted)
    random.Random(seed).shuffle(candidates)
    kills: Counter[tuple[str, str]] = Counter()
    tried, survivors, known = 0, [], 0
    limits = {}
    for part in {candidate.part for candidate in candidates}:
        began = time.monotonic()
        names = vars(reference(part))
        wrong = [v.check for v in verdicts(part, names, seed) if not v.passed]  # and the reference is probed once
        assert not wrong, f"the reference fails {wrong}"
        limits[part] = 20 + 5 * (time.monotonic() - began)  # of what takes an answer's time twice by now
    until = time.monotonic() + budget
    for candidate in candidates:
        if time.monotonic() > until:
            break
        if (exercise, candidate.edit.words) in EQUIVALENT:
            known += 1
            continue
        part = candidate.part
        checks = sorted((c.name() for c in find_part(part).checks), key=lambda name: -kills[part, name])
        failed = try_answer(part, candidate.edit.source, seed, checks, limits[part])
        kills.update((part, check) for check in failed)
        tried += 1
        if not failed:
            survivors.append(candidate)
            print(f"{part}, in {candidate.origin}: {candidate.edit.words}", flush=True)
    print(
        f"{exercise}: {len(candidates)} edits, {tried} tried, {known} known to be right, {len(survivors)} get through"
    )
    for (part, check), n in kills.most_common():
        print(f"  {n:5} {part}: {check}")
    return tried, survivors


def main() -> int:
    """Search by the command line; the exit code is 1 where something gets through."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.search", description=__doc__)
    parser.add_argument("exercise", choices=["x1", "x2", "x3", "x4", "x5", "x6", "x7"])
    parser.add_argument("--budget", type=float, default=300.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", default="", help="one part alone, for example x2.scaled")
    given = parser.parse_args()
    return 1 if search(given.exercise, given.budget, given.seed, given.part)[1] else 0


if __name__ == "__main__":
    sys.exit(main())
