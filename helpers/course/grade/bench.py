"""What one machine needs to grade submissions: warm servers to fork them from, and what the references showed here."""

import threading
from collections.abc import Sequence

from ...exercises.base import Evidence
from ..build.source import Source
from .intake.hand_in import HandIn
from .judge.result import Result, grade_run
from .reference import expected_evidence
from .run.execute import run_hand_in
from .run.warm import WarmServers
from .store.conditions import Conditions
from .store.store import Store

Expected = dict[str, dict[str, Evidence]]  # of one exercise: evidence of the reference by check cell, then by check


class Bench:
    """Runs and judges one submission after another, or several at a time from several threads.

    The reference of an exercise runs once, before its first submission. It runs on this machine, because figures differ
    from one kind of processor to the next.

    Args:
        store: keeps what the references showed for later runs; None keeps nothing.

    Attributes:
        seconds: by the exercise's name, how long its reference ran, without the imports.
    """

    def __init__(self, conditions: Conditions, servers: WarmServers, store: Store | None = None) -> None:
        self._conditions, self._servers, self._store = conditions, servers, store
        self.seconds: dict[str, float] = {}
        self._expected: dict[Source, Expected] = {}
        self._locks: dict[Source, threading.Lock] = {}

    def grade(self, hand_in: HandIn) -> Result:
        """Return the result of a submission.

        Raises:
            GradeError: the reference fails on this machine.
        """
        expected = self.expected(hand_in.source)
        run = run_hand_in(hand_in, self._conditions.seed, self._conditions.timeout, self._servers)
        return grade_run(hand_in, run, expected)

    def lacks(self, exercises: Sequence[Source]) -> list[Source]:
        """Return those of `exercises` whose reference has not run, neither in this run nor in an earlier one."""
        return [source for source in dict.fromkeys(exercises) if not self._known(source)]

    def _known(self, source: Source) -> bool:
        if source not in self._expected and self._store:
            kept = self._store.reference(source.exercise, self._conditions)
            if kept:
                self._expected[source], self.seconds[source.exercise] = kept
        return source in self._expected

    def expected(self, source: Source) -> Expected:
        """Return what the reference showed.

        Raises:
            GradeError: it fails on this machine.
        """
        with self._locks.setdefault(source, threading.Lock()):
            if not self._known(source):
                expected = expected_evidence(source, self._conditions, self._servers, self.seconds)
                self._expected[source] = expected
                if self._store:
                    seconds = self.seconds.get(source.exercise, 0.0)
                    self._store.keep_reference(source.exercise, self._conditions, expected, seconds)
            return self._expected[source]
