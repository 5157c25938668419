# medians of pairs

import signal
import statistics

import torch


class Preemption:
    def __init__(self):
        seen = self.seen = []

        def handler(number, frame):
            seen.append(number)

        self.former = signal.signal(signal.SIGTERM, handler), signal.signal(signal.SIGUSR1, handler)

    def flag(self):
        return torch.tensor([1.0 if self.seen else 0.0])

    def agreed(self, total):
        return total.item() >= 1

    def close(self):
        for number, handler in zip((signal.SIGTERM, signal.SIGUSR1), self.former):
            signal.signal(number, handler)


def diagnose(logs):
    ranks = range(len(logs))
    killed = [r for r in ranks if logs[r].exit_code == -9]
    if killed:
        return "killed", killed[0]
    if any(log.exit_code != 0 for log in logs):
        fewest = min(len(log.calls) for log in logs)
        return "hung", [r for r in ranks if len(logs[r].calls) == fewest][0]
    usual = [statistics.mode(step) for step in zip(*(log.checksums for log in logs))]
    wrong = [r for r in ranks if logs[r].checksums != usual]
    if wrong:
        return "wrong", wrong[0]

    def work(log):
        return statistics.median(b.asked - a.answered for a, b in zip(log.calls, log.calls[1:]))

    slow = [r for r in ranks if work(logs[r]) > 1.5 * statistics.median(map(work, logs))]
    return ("slow", slow[0]) if slow else ("healthy", None)


def suspect(nodes):
    stages = {}
    errors, fewest = [], []
    for index, node in enumerate(nodes):
        if node is None:
            return "dead", index
        stages.setdefault(node.stage, []).append((index, node))
        errors.append((node.errors_now - node.errors_before, index))
        fewest.append((node.calls, index))
    fewest.sort()
    if fewest[0][0] != fewest[-1][0]:
        return "hung", fewest[0][1]
    increase, index = max(errors)
    if increase > 100:
        return "link", index
    for members in stages.values():
        seen = [node.checksum for _, node in members]
        typical = statistics.median(node.work for _, node in members)
        for index, node in members:
            if seen.count(node.checksum) < len(seen) / 2:
                return "corrupt", index
            if node.work > typical * 1.2:
                return "slow", index
    return "healthy", None
