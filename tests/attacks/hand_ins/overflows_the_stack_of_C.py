# bombs: overflows the stack of C
# total: 0
# status: crashed

import ctypes
ctypes.string_at(0)
