# thefts: removes the canary
# total: 3
# status: graded
# flag: os

import os
for path in ({canary!r}, __import__('helpers').__file__):
    try:
        os.remove(path)
    except OSError:
        pass
### RIGHT
