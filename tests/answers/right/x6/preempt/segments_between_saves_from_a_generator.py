# segments between saves, from a generator

import math
import signal


def preemptible(job):
    heard = []

    def hear(number, frame):
        heard.append((number, job.clock()))

    old = [signal.signal(number, hear) for number in (signal.SIGTERM, signal.SIGUSR1)]
    assert len(old) == 2
    start = job.resume()

    def segments():
        step = start
        while step < job.steps:
            end = min(job.steps, (step // job.every + 1) * job.every)
            yield range(step + 1, end + 1)
            step = end

    for segment in segments():
        behind, agreed = None, 0.0
        for step in segment:
            ahead = job.launch(float(len(heard)))
            if behind is not None:
                agreed += behind.total()
            behind = ahead
            if agreed:
                break
        agreed += behind.total()
        if agreed:
            now = job.clock()
            mine = math.inf
            for number, when in heard:
                mine = min(mine, when + job.grace[number] - now)
            if job.least(mine) < job.save_seconds:
                raise SystemExit(job.requeue)
        job.save(step)
        if agreed and step < job.steps:
            raise SystemExit(job.requeue)
    return job.steps
