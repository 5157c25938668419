# bombs: sleeps and ignores signals
# total: 0
# status: partly (timeout)

import signal, time
for s in range(1, 32):
    try:
        signal.signal(s, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
time.sleep(10**6)
