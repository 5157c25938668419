# from the longest name

from torch import nn


def with_group_norm(model, groups):
    for name, old in sorted(model.named_modules(), key=lambda pair: -len(pair[0])):
        if isinstance(old, nn.BatchNorm2d):
            where = {"device": old.weight.device, "dtype": old.weight.dtype}
            new = nn.GroupNorm(groups, old.num_features, old.eps, **where)
            new.weight.data, new.bias.data = old.weight.data, old.bias.data
            new.training = old.training
            model.set_submodule(name, new)
    return model
