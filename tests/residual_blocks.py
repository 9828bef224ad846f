"""A residual block for tests of conversion."""

import operator

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """A residual block whose addition is written in one of several ways."""

    def __init__(self, width=8, way="plus", stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, stride, 1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(width, width, 1, stride)
        self.way, self.width = way, width

    def forward(self, x):
        out, skip = self.conv2(self.conv1(x).relu()), self.shortcut(x)
        if self.way == "plus":
            return functional.relu(out + skip)
        if self.way == "iadd":
            out += skip
            return out.relu()
        if self.way == "operator":
            return operator.iadd(out, skip).relu()
        if self.way == "method":
            return out.add(skip).relu()
        return torch.add(skip, out).relu()
