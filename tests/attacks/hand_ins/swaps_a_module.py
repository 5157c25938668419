# patches: swaps a module
# total: 3
# status: graded
# flag: sys.modules

import sys, types
sys.modules['helpers.exercises.checking'] = types.ModuleType('x')
### RIGHT
