# bombs: a bomb of threads
# total: 3
# status: graded

import threading, time
for _ in range(3000):
    try:
        threading.Thread(target=time.sleep, args=(10**6,), daemon=True).start()
    except RuntimeError:
        break
### RIGHT
