# notes in a class inside the function

import math
import signal


def preemptible(job):
    class Notes:
        deadline = math.inf
        came = False

    def handler(number, frame):
        Notes.came = True
        Notes.deadline = min(Notes.deadline, job.clock() + job.grace[number])

    signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGUSR1, handler)
    step = saved = job.resume()
    pending, stopping = None, False
    while step < job.steps and not stopping:
        now = job.launch(1 if Notes.came else 0)
        step += 1
        stopping = pending is not None and pending.total() >= 1
        pending = now
        if not (stopping or step % job.every == 0 or step == job.steps):
            continue
        stopping = pending.total() >= 1 or stopping
        pending = None
        if stopping and job.least(Notes.deadline - job.clock()) < job.save_seconds:
            break
        job.save(step)
        saved = step
    if saved == job.steps:
        return job.steps
    raise SystemExit(job.requeue)
