# forgeries: closes every open file
# total: 0
# status: crashed

import os
os.closerange(3, 64)
### RIGHT
