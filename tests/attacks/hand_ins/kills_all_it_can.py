# bombs: kills all it can
# total: 0
# status: crashed

import os
os.kill(-1, 9)
### RIGHT
