# a class with a deadline and a queue of steps

import signal
from collections import deque

UNSIGNALED = float("inf")


class Deadline:
    def __init__(self, job):
        self.job, self.at = job, UNSIGNALED
        for number in job.grace:
            signal.signal(number, self.on_signal)

    def on_signal(self, number, _):
        self.at = min(self.at, self.job.clock() + self.job.grace[number])

    @property
    def left(self):
        return self.at - self.job.clock()


class Loop:
    def __init__(self, job):
        self.job, self.deadline = job, Deadline(job)
        self.step = self.published = job.resume()
        self.queue = deque()

    def signaled(self, depth):
        """Read totals until `depth` steps are in the queue."""
        total = 0
        while len(self.queue) > depth:
            total += self.queue.popleft().total()
        return total != 0

    def publish(self):
        self.job.save(self.step)
        self.published = self.step

    def run(self):
        while self.step != self.job.steps:
            self.queue.append(self.job.launch(1 if self.deadline.at < UNSIGNALED else 0))
            self.step += 1
            stop = self.signaled(1)
            if stop or self.step in self.due():
                stop |= self.signaled(0)
            if stop:
                if self.job.least(self.deadline.left) >= self.job.save_seconds:
                    self.publish()
                return
            if self.step in self.due():
                self.publish()

    def due(self):
        return {*range(self.job.every, self.job.steps, self.job.every), self.job.steps}


def preemptible(job):
    loop = Loop(job)
    loop.run()
    if loop.published == job.steps:
        return job.steps
    raise SystemExit(job.requeue)
