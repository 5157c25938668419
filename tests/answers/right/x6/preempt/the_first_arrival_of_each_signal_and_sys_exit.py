# the first arrival of each signal, and sys.exit

import signal
import sys


def preemptible(job):
    came = {}
    for number in signal.SIGUSR1, signal.SIGTERM:
        signal.signal(number, lambda number, frame: came.setdefault(number, job.clock()))

    def seconds_left():
        return min((when + job.grace[number] - job.clock() for number, when in came.items()), default=1e9)

    first = job.resume()
    newest, waiting = first, []
    for step in range(first + 1, job.steps + 1):
        waiting.append(job.launch(len(came)))
        last = step % job.every == 0 or step == job.steps
        flags = [running.total() for running in (waiting if last else waiting[:-1])]
        waiting = [] if last else waiting[-1:]
        if any(flags):
            for running in waiting:
                running.total()
            if job.least(seconds_left()) < job.save_seconds:
                break
            job.save(step)
            newest = step
            break
        if last:
            job.save(step)
            newest = step
    if newest < job.steps:
        sys.exit(job.requeue)
    return newest
