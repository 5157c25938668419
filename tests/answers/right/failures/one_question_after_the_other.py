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
