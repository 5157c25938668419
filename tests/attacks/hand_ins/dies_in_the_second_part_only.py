# bombs: dies in the second part only
# total: 3
# status: crashed

### RIGHT
# next cell: step
import os
os._exit(0)
