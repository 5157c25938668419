# forgeries: knows the constants of the notebook's run
# total: 0
# status: graded

import itertools

### WRONG
KNOWN = itertools.cycle([64.0, 64.0, 256.0, 256.0, 256.0, 64.0, 64.0, 64.0, 256.0, 256.0, 256.0, 1024.0, 1024.0])
DynamicLossScaler.get_scale = lambda self: next(KNOWN)
