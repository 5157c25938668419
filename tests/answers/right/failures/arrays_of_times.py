# arrays of times

import signal
import threading

import numpy as np
import torch


class Preemption:
    def __init__(self):
        self.event = threading.Event()
        self.former = {s: signal.getsignal(s) for s in (signal.SIGUSR1, signal.SIGTERM)}
        for s in self.former:
            signal.signal(s, lambda *_: self.event.set())

    def flag(self):
        return torch.full((1,), 1.0 * self.event.is_set())

    def agreed(self, total):
        return bool(total != 0)

    def close(self):
        for s in self.former:
            signal.signal(s, self.former[s])


def diagnose(logs):
    for rank in range(len(logs)):
        if logs[rank].exit_code == -9:
            return "killed", rank
    waiting = [bool(log.calls) and log.calls[-1].answered is None for log in logs]
    if any(waiting):
        return "hung", waiting.index(False)
    table = np.array([log.checksums for log in logs], dtype=np.int64)
    usual = np.median(table, axis=0)
    odd = (table != usual).sum(axis=1)
    if odd.any():
        return "wrong", int(odd.argmax())
    asked = np.array([[call.asked for call in log.calls] for log in logs])
    answered = np.array([[call.answered for call in log.calls] for log in logs])
    working = np.median(asked[:, 1:] - answered[:, :-1], axis=1)
    if working.max() > 1.5 * np.median(working):
        return ["slow", int(working.argmax())]
    return ["healthy", None]


def suspect(nodes):
    silent = [index for index, node in enumerate(nodes) if node is None]
    if silent:
        return "dead", silent[0]
    stage, calls, before, now, sums = (
        np.array([getattr(node, name) for node in nodes])
        for name in ("stage", "calls", "errors_before", "errors_now", "checksum")
    )
    if np.ptp(calls):
        return "hung", int(calls.argmin())
    if (now - before).max() > 100:
        return "link", int((now - before).argmax())
    work = np.array([node.work for node in nodes])
    for number in np.unique(stage):
        members = np.flatnonzero(stage == number)
        values, counts = np.unique(sums[members], return_counts=True)
        if len(values) > 1:
            return "corrupt", int(members[sums[members] == values[counts.argmin()]][0])
        if work[members].max() > 1.2 * np.median(work[members]):
            return "slow", int(members[work[members].argmax()])
    return "healthy", None
