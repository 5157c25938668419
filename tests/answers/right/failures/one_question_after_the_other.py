# one question after the other

import contextlib
import signal

import torch


class Preemption:
    def __init__(self):
        self.signals = torch.zeros(1)
        self.stack = contextlib.ExitStack()
        for number in (signal.SIGTERM, signal.SIGUSR1):
            self.stack.callback(signal.signal, number, signal.signal(number, self.handle))

    def handle(self, *_):
        self.signals.fill_(1)

    def flag(self):
        return self.signals.clone()

    def agreed(self, total):
        return round(float(total)) != 0

    def close(self):
        self.stack.close()


def diagnose(logs):
    codes = [log.exit_code for log in logs]
    if -9 in codes:
        return ("killed", codes.index(-9))
    if set(codes) != {0}:
        lengths = [sum(call.answered is None for call in log.calls) for log in logs]
        return ("hung", lengths.index(0))
    last = [log.checksums[-1] for log in logs]
    for rank in range(len(logs)):
        if last.count(last[rank]) == 1 and len(set(last)) > 1:
            return ("wrong", rank)
    medians = []
    for log in logs:
        gaps = sorted(log.calls[i + 1].asked - log.calls[i].answered for i in range(len(log.calls) - 1))
        medians.append(gaps[len(gaps) // 2])
    ordered = sorted(medians)
    typical = (ordered[len(ordered) // 2] + ordered[(len(ordered) - 1) // 2]) / 2
    for rank, seconds in enumerate(medians):
        if seconds > 1.5 * typical:
            return ("slow", rank)
    return ("healthy", None)


def suspect(nodes):
    for index, node in enumerate(nodes):
        if node is None:
            return ("dead", index)
    calls = [node.calls for node in nodes]
    for index in range(len(nodes)):
        if calls[index] < max(calls):
            return ("hung", index)
    grown = {index: node.errors_now - node.errors_before for index, node in enumerate(nodes)}
    worst = max(grown, key=grown.get)
    if grown[worst] > 100:
        return ("link", worst)
    for index, node in enumerate(nodes):
        peers = [other for other in nodes if other.stage == node.stage and other is not node]
        if all(node.checksum != other.checksum for other in peers):
            return ("corrupt", index)
    for index, node in enumerate(nodes):
        work = sorted(other.work for other in nodes if other.stage == node.stage)
        middle = (work[len(work) // 2] + work[(len(work) - 1) // 2]) / 2
        if node.work / middle > 1.2:
            return ("slow", index)
    return ("healthy", None)
