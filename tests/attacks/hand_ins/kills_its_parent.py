# bombs: kills its parent
# total: 0
# status: crashed

import os
os.kill(os.getppid(), 9)
### RIGHT
