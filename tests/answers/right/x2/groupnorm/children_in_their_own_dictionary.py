# children in their own dictionary

from torch import nn


def with_group_norm(model, groups):
    def visit(module):
        for name in list(module._modules):
            child = module._modules[name]
            if isinstance(child, nn.BatchNorm2d):
                norm = nn.GroupNorm(groups, child.num_features, eps=child.eps).to(child.weight)
                norm.weight, norm.bias = child.weight, child.bias
                module._modules[name] = norm.train(child.training)
            elif child is not None:
                visit(child)
        return module

    return visit(model)
