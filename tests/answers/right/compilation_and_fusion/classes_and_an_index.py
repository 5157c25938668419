# classes and an index

import torch


class Normalized:
    def __init__(self, y):
        self.y = y

    def scaled(self):
        return self.y.div(self.y.abs().amax())


def repaired(x):
    y = x + x
    return Normalized(torch.stack([y, y - 1]).index_select(0, (y.mean() > 0).long().view(1))[0]).scaled()


class Counted:
    def __init__(self, graph, index, ran):
        self.graph, self.index, self.ran = graph, index, ran

    def __call__(self, *given):
        self.ran.append(self.index)
        return torch.fx.Interpreter(self.graph).run(*given)


class Backend:
    def __init__(self, made, ran):
        self.made, self.ran = made, ran

    def __call__(self, graph, inputs):
        self.made.append(0)
        for node in graph.graph.nodes:
            self.made[-1] += node.op.startswith("call_")
        return Counted(graph, len(self.made) - 1, self.ran).__call__


def counting_backend(made, ran):
    return Backend(made, ran)
