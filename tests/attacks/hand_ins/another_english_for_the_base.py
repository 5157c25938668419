# patches: what the base of X4 has read, so that it has more to learn
# exercise: x4
# total: 4
# status: graded

### RIGHT

from pydoc_data.topics import topics

topics.clear()
topics["a"] = "ab" * 200_000
# next cell: adapter
### RIGHT
