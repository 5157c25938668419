# patches: swaps a function's body
# total: 3
# status: graded
# flag: body

from helpers.exercises.probing import loss_scaler
loss_scaler._toy.__code__ = (lambda *a, **k: 1 / 0).__code__
### RIGHT
