"""Why a real GPU ran out of memory: reads a snapshot or an out-of-memory message, and names what to change first.

python -m helpers autopsy snapshot.pickle          python -m helpers autopsy message.txt

reader.py      files: a snapshot's pickle, in which nothing but plain data is allowed; a pasted message
message.py     the figures of PyTorch's message, in its wordings since 1.8
frames.py      which line of the program a stack is on, and what its memory is for
snapshot.py    blocks, segments and steps of one GPU
growth.py      what holds more after each step
findings.py    all of that in words; cli.py: on the command line
"""
