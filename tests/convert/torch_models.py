"""Models of PyTorch, in a file of their own: it takes seconds to load, and not every process needs it."""

import torch


class TorchPerceptron(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.PReLU(), torch.nn.Linear(16, 5))
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x):
        return self.layers(self.norm(x))


class TorchConvNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, (3, 5), padding=(1, 2))
        self.bn = torch.nn.BatchNorm2d(8)
        self.grouped = torch.nn.Conv2d(8, 12, 3, stride=2, padding=1, groups=4, bias=False)
        self.gn = torch.nn.GroupNorm(3, 12)
        self.up = torch.nn.ConvTranspose2d(12, 6, (2, 3), stride=2)
        self.head = torch.nn.Linear(6, 5)

    def forward(self, x):
        x = torch.relu(self.bn(self.conv(x)))
        x = torch.relu(self.gn(self.grouped(x)))
        return self.head(self.up(x).mean((2, 3)))


class TorchBlock(torch.nn.Module):
    def __init__(self, features_in, features, stride):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(features_in, features, 3, stride, 1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(features)
        self.conv2 = torch.nn.Conv2d(features, features, 3, 1, 1, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(features)
        self.downsample = None
        if stride != 1:
            conv = torch.nn.Conv2d(features_in, features, 1, stride, bias=False)
            self.downsample = torch.nn.Sequential(conv, torch.nn.BatchNorm2d(features))

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + (x if self.downsample is None else self.downsample(x)))


class TorchResNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 4, 3, 1, 1)
        self.layer1 = torch.nn.Sequential(TorchBlock(4, 4, 1), TorchBlock(4, 4, 1))
        self.layer2 = torch.nn.Sequential(TorchBlock(4, 8, 2), TorchBlock(8, 8, 1))
        self.fc = torch.nn.Linear(8, 5)

    def forward(self, x):
        return self.fc(self.layer2(self.layer1(self.stem(x))).mean((2, 3)))


class TorchEncoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(17, 8)
        layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 2)
        self.head = torch.nn.Linear(8, 5)

    def forward(self, tokens):
        return self.head(self.encoder(self.embed(tokens)).mean(1))


class TorchDecoderLayer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (torch.nn.Linear(8, 8) for _ in range(4))
        self.mlp = torch.nn.ModuleDict({"up": torch.nn.Linear(8, 16), "down": torch.nn.Linear(16, 8)})
        self.ln_1, self.ln_2 = torch.nn.RMSNorm(8, eps=1e-6), torch.nn.RMSNorm(8, eps=1e-6)

    def forward(self, x):
        y = self.ln_1(x)
        q, k, v = (proj(y).unflatten(-1, (2, 4)).transpose(1, 2) for proj in (self.q_proj, self.k_proj, self.v_proj))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o_proj(y.transpose(1, 2).flatten(2))
        return x + self.mlp["down"](torch.nn.functional.gelu(self.mlp["up"](self.ln_2(x)), approximate="tanh"))


class TorchDecoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        wte = torch.nn.Embedding(17, 8)
        h = torch.nn.ModuleList([TorchDecoderLayer(), TorchDecoderLayer()])
        self.transformer = torch.nn.ModuleDict({"wte": wte, "h": h, "ln_f": torch.nn.RMSNorm(8, eps=1e-6)})
        self.positions = torch.nn.Parameter(torch.randn(7, 8))
        self.lm_head = torch.nn.Linear(8, 17, bias=False)
        self.lm_head.weight = wte.weight

    def forward(self, tokens):
        x = self.transformer["wte"](tokens) + self.positions
        for layer in self.transformer["h"]:
            x = layer(x)
        return self.lm_head(self.transformer["ln_f"](x))


class TorchRecurrent(torch.nn.Module):
    def __init__(self, cls, **options):
        super().__init__()
        self.rnn = cls(8, 6, batch_first=True, **options)
        self.head = torch.nn.Linear(12 if options else 6, 5)
        if cls is torch.nn.GRU:
            with torch.no_grad():
                for bias in (getattr(self.rnn, name) for name in dir(self.rnn) if name.startswith("bias_hh_l0")):
                    bias[12:] = 0

    def forward(self, x):
        return self.head(self.rnn(x)[0].mean(1))
