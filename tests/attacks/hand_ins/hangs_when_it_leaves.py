# bombs: hangs when it leaves
# total: 3
# status: graded

import atexit, time
atexit.register(time.sleep, 10**6)
### RIGHT
