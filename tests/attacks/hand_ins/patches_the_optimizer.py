# patches: patches the optimizer
# total: 0
# status: graded
# flag: SGD.step

import torch
torch.optim.SGD.step = lambda self, *a: None
### WRONG
