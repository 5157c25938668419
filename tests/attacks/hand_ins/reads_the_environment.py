# thefts: reads the environment
# total: 0
# status: graded

import os
assert os.environ['CANARY'] == 'sings'
### RIGHT
