# patches: overrides display
# total: 3
# status: graded

import IPython.display
IPython.display.display = lambda *a, **k: None
### RIGHT
