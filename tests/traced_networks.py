"""Networks that are not ours, for tests of the fast path that follows them."""

import torch
from torch import nn
from torch.nn import functional

from problems import random_problem

IMAGES, LABELS = random_problem((6, 3, 12, 12), classes=4)


class PostActivation(nn.Module):
    """As in torchvision: the activation comes after the addition, in place."""

    def __init__(self, width=8, groups=1, bias=False):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, groups=groups, bias=bias)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, groups=groups, bias=bias)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x
        return self.relu(out)


class Gated(PostActivation):
    """Squeeze and excite."""

    def forward(self, x):
        gate = torch.sigmoid(x.mean(dim=(2, 3), keepdim=True))
        return x + self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x))))) * gate


class Dense(PostActivation):
    def forward(self, x):
        return torch.cat([x, self.bn1(self.conv1(x))], dim=1)[:, :8] + x


class Shared(PostActivation):
    """One convolution, two places: it cannot take up a BatchNorm."""

    def forward(self, x):
        return x + self.bn2(self.conv1(functional.gelu(self.bn1(self.conv1(x)))))


class Net(nn.Module):
    def __init__(self, *blocks):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.Sequential(*blocks)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, 4)

    def forward(self, images):
        features = self.blocks(self.stem(images))
        return self.head(self.drop(functional.adaptive_avg_pool2d(features, 1).flatten(1)))


def trained(model):
    """Return a network whose BatchNorm is not the identity."""
    with torch.no_grad():
        for name, value in (*model.named_parameters(), *model.named_buffers()):
            if "running_var" in name:
                value.add_(torch.rand(value.shape))
            elif value.is_floating_point():
                value.add_(0.2 * torch.rand(value.shape) - 0.1)
    return model.eval()


NETWORKS = {
    "post-activation": lambda: Net(PostActivation(), PostActivation()),
    "groups and bias": lambda: Net(PostActivation(groups=2, bias=True)),
    "squeeze and excite": lambda: Net(Gated()),
    "concatenation": lambda: Net(Dense()),
    "shared convolution": lambda: Net(Shared()),
    "layer norm": lambda: Net(nn.GroupNorm(2, 8), nn.GELU(), PostActivation()),
}
