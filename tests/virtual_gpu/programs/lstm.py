import torch


class M(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.e = torch.nn.Embedding(10000, 650)
        self.r = torch.nn.LSTM(650, 650, 2, dropout=0.5)
        self.o = torch.nn.Linear(650, 10000)

    def forward(self, x):
        return self.o(self.r(self.e(x))[0])


m = M().cuda()
o = torch.optim.SGD(m.parameters(), 1.0)
for _ in range(8):
    x = torch.randint(0, 10000, (35, 64), device="cuda")
    loss = torch.nn.functional.cross_entropy(m(x).flatten(0, 1), x.flatten())
    o.zero_grad()
    loss.backward()
    o.step()
