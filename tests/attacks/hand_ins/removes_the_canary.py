# thefts: removes the canary
# total: 3
# status: graded
# flag: os

import os
for path in ({canary!r}, '/course/helpers/__init__.py'):
    try:
        os.remove(path)
    except OSError:
        pass
### RIGHT
