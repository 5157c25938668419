# patches: empties sys.modules
# total: 3
# status: graded
# flag: sys.modules

import sys
for name in [n for n in sys.modules if n.startswith('helpers')]:
    del sys.modules[name]
### RIGHT
