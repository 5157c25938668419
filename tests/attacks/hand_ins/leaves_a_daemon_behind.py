# bombs: leaves a daemon behind
# total: 3
# status: graded

import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        import time
        time.sleep(4711)
    os._exit(0)
### RIGHT
