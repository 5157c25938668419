# patches: patches json
# total: 0
# status: graded
# flag: json.dumps

import json
json.dumps = lambda *a, **k: '{}'
### WRONG
