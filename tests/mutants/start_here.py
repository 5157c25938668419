"""Wrong and right answers for the practice task of start here."""

from . import Mutant

PART, CHECK = "start_here.bytes", "counts_every_parameter_once"
SUM = "sum(p.numel() * p.element_size() for p in model.parameters())"

MUTANTS = [
    Mutant("takes FP32 for granted", PART, CHECK, ((SUM, "4 * sum(p.numel() for p in model.parameters())"),)),
    Mutant("skips frozen ones", PART, CHECK, (("in model.parameters())", "in model.parameters() if p.requires_grad)"),)),
    Mutant("counts shared ones twice", PART, CHECK, (
        ("in model.parameters())", "in model.state_dict().values() if p.is_floating_point())"),)),
    Mutant("counts elements", PART, CHECK, (("p.numel() * p.element_size()", "p.numel()"),)),
    Mutant("counts buffers too", PART, CHECK, (
        ("in model.parameters())", "in [*model.parameters(), *model.buffers()])"),)),
]  # fmt: skip

RIGHT = {
    "nbytes": "def parameter_bytes(model):\n    return sum(p.nbytes for p in model.parameters())\n",
    "by storage": """
def parameter_bytes(model):
    seen = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            storage = parameter.untyped_storage()
            seen[storage.data_ptr()] = storage.nbytes()
    return sum(seen.values())
""",
}
