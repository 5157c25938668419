# a log of events

from collections import deque


def step_time(operations, launch, queued):
    waiting, time, working = deque(operations), 0.0, 0.0
    queue_ends = deque([0.0], maxlen=1)
    while waiting:
        work, value_needed = waiting.popleft()
        time = time + launch
        begin = time
        if queue_ends[0] > begin:
            begin = queue_ends[0]
        queue_ends.append(begin + work)
        working = working + work
        if value_needed or queued is False:
            time = queue_ends[0]
    last = queue_ends[0]
    if last == 0:
        return 0.0, 0.0
    return last, (last - working) / last
