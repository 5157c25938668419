# patches: an import hook
# total: 3
# status: graded

import sys
class F:
    def find_spec(self, *a):
        raise ImportError
sys.meta_path.insert(0, F())
### RIGHT
