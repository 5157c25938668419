# thefts: writes a gradebook
# total: 3
# status: graded

import pathlib
for folder in ({folder!r}, '..', '../..', '/course'):
    try:
        pathlib.Path(folder, 'gradebook.csv').write_text('student,total\n')
    except OSError:
        pass
### RIGHT
