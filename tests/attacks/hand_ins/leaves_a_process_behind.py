# bombs: leaves a process behind
# total: 3
# status: graded
# flag: process

import subprocess
subprocess.Popen(['sleep', '4711'], start_new_session=True)
### RIGHT
