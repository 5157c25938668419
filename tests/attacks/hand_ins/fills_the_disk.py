# bombs: fills the disk
# total: 0
# status: graded

import os
for i in range(100):
    try:
        with open(f'/tmp/{i}', 'wb') as file:
            for _ in range(64):
                file.write(b'x' * (1 << 22))
    except OSError:
        break
### WRONG
