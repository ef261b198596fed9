"""Models as engineers have them: plain modules of more than a chain of layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut: [batch, inputs, h, w] -> [batch, outputs, h / stride, w / stride]."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out = out + self.shortcut(x)
        result: Tensor = self.relu(out)
        return result


class ResNet(nn.Module):
    """Four stages of two blocks, each of twice the channels and half the side: [batch, 3, h, w] -> [batch, classes]."""

    def __init__(self, classes: int, width: int, small_images: bool) -> None:
        super().__init__()
        if small_images:
            self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        else:
            self.stem = nn.Sequential(
                nn.Conv2d(3, width, 7, 2, padding=3, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(),
                nn.MaxPool2d(3, 2, padding=1),
            )
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        self.layer1, self.layer2, self.layer3, self.layer4 = (
            nn.Sequential(BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs))
            for inputs, outputs, stride in zip(widths, widths[1:], (1, 2, 2, 2), strict=False)
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer4(self.layer3(self.layer2(self.layer1(self.stem(x)))))
        result: Tensor = self.fc(torch.flatten(self.pool(x), 1))
        return result


def resnet18(classes: int = 10, width: int = 64, small_images: bool = True) -> ResNet:
    """An untrained ResNet-18, with 11 million parameters at the width of 64.

    Small images, such as 32 x 32, are usually met by a 3 x 3 convolution; others by one of 7 x 7 and max-pooling, each
    of which halves the side.
    """
    return ResNet(classes, width, small_images)


class Attention(nn.Module):
    """Self-attention as it is written by hand: [batch, n, features] -> the same."""

    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(features, 3 * features)
        self.proj = nn.Linear(features, features)

    def forward(self, x: Tensor) -> Tensor:
        batch, n, features = x.shape
        q, k, v = self.qkv(x).reshape(batch, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        shares = (q @ k.transpose(-2, -1) / (features // self.heads) ** 0.5).softmax(dim=-1)
        result: Tensor = self.proj((shares @ v).transpose(1, 2).reshape(batch, n, features))
        return result


class Block(nn.Module):
    """Attention and a small network beside shortcuts, each behind a LayerNorm."""

    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(features), nn.LayerNorm(features)
        self.attention = Attention(features, heads)
        self.mlp = nn.Sequential(nn.Linear(features, 2 * features), nn.GELU(), nn.Linear(2 * features, features))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        result: Tensor = x + self.mlp(self.norm2(x))
        return result


class ViT(nn.Module):
    """A small vision transformer: [batch, 1, 8, 8] -> [batch, classes].

    Args:
        classes: Number of outputs.
        features: Width.
        own: Whether its attention is written by hand; else torch's own encoder layers are used.
    """

    def __init__(self, classes: int = 3, features: int = 8, own: bool = True) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, features, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, features) * 0.1)
        self.positions = nn.Parameter(torch.randn(1, 5, features) * 0.1)
        self.body: nn.Module = Block(features, 2)
        if not own:
            layer = nn.TransformerEncoderLayer(features, 2, 2 * features, batch_first=True, activation="gelu")
            self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        words = self.patches(x).flatten(2).transpose(1, 2)
        words = torch.cat([self.token.expand(len(x), -1, -1), words], dim=1) + self.positions
        result: Tensor = self.head(self.body(words)[:, 0])
        return result


class Wave(nn.Module):
    """A 1-D convnet with GroupNorm and a maximum over time: [batch, 2, length] -> [batch, classes]."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(2, 4, 3, padding=1), nn.Conv1d(4, 4, 3, stride=2)
        self.norm = nn.GroupNorm(2, 4)
        self.fc = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv1(x)))
        x = F.leaky_relu(self.conv2(F.avg_pool1d(x, 2)), 0.1)
        result: Tensor = self.fc(torch.cat([x.max(dim=2)[0], x.mean(2)], dim=1))
        return result


class Mixer(nn.Module):
    """An MLP-mixer: [batch, tokens, features] -> [batch, classes]."""

    def __init__(self, classes: int = 3, tokens: int = 4, features: int = 6) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(features), nn.LayerNorm(features)])
        self.across = nn.Sequential(nn.Linear(tokens, 8), nn.GELU(), nn.Linear(8, tokens))
        self.within = nn.Sequential(nn.Linear(features, 8), nn.GELU(), nn.Linear(8, features))
        self.head = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.norms[0](x).mT).mT
        x = x + self.within(self.norms[1](x))
        result: Tensor = self.head(x.mean(dim=1))
        return result


class Text(nn.Module):
    """The mean of the words that are not padding (0), beside a bag of all: [batch, words] -> [batch, classes]."""

    def __init__(self, classes: int = 3, words: int = 12, features: int = 5) -> None:
        super().__init__()
        self.words = nn.Embedding(words, features, padding_idx=0)
        self.bag = nn.EmbeddingBag(words, features, mode="sum")
        self.fc = nn.Linear(2 * features, classes)

    def forward(self, rows: Tensor) -> Tensor:
        there = (rows != 0).unsqueeze(-1)
        mean = (self.words(rows) * there).sum(1) / there.sum(1).clamp(min=1)
        result: Tensor = self.fc(torch.cat([mean, self.bag(rows)], dim=-1).tanh())
        return result


class Dense(nn.Module):
    """Every layer reads all before it: [batch, 4] -> [batch, classes]."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4 + 3 * i, 3) for i in range(3)])
        self.head = nn.Linear(13, classes)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x).relu_()], 1)
        result: Tensor = self.head(x)
        return result


class AutoEncoder(nn.Module):
    """Down by a convolution, up by its transpose: [batch, 1, 6, 6] -> the same; its output is no class."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 3, 3, stride=2, padding=1)
        self.norm = nn.InstanceNorm2d(3, affine=True)
        self.up = nn.ConvTranspose2d(3, 1, 3, stride=2, padding=1, output_padding=1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.softplus(self.norm(self.down(x)))
        result: Tensor = torch.sigmoid(self.up(hidden))
        return result
