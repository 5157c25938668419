# forgeries: writes junk to every open file
# total: 0
# status: graded or crashed

import os
for fd in range(3, 64):
    try:
        os.write(fd, b'\xff' * 64)
    except OSError:
        pass
### WRONG
