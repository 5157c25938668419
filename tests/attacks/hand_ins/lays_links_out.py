# thefts: lays links out
# total: 3
# status: graded

import os
os.symlink({canary!r}, '/tmp/link')
try:
    open('/tmp/link', 'w').write('gone')
except OSError:
    pass
### RIGHT
