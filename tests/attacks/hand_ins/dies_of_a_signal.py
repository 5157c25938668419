# bombs: dies of a signal
# total: 0
# status: crashed

import os
os.kill(os.getpid(), 9)
