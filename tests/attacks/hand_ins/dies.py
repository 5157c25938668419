# bombs: dies
# total: 0
# status: crashed

import os
os._exit(3)
