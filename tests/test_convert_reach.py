"""Sums that do not reach the logits, and operations that add besides, are listed as skipped."""

import pytest
import torch
from torch import nn

from enresnet.models import feynman_kac, find_residuals
from problems import Net, seeded

IMAGES = torch.rand(2, 3, 16, 16, generator=seeded())


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.other = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.scale = nn.Parameter(torch.ones(8, 1, 1))

    def forward(self, x):
        return x + self.conv(x).relu()


class Dead(Block):
    def forward(self, x):
        unused = x + self.other(x).relu()
        del unused
        return super().forward(x)


class Detached(Block):
    """Its sum reaches the logits, but autograd does not know."""

    def forward(self, x):
        return (x + self.conv(x).relu()).detach() * self.other(x)


class WithBranch(Net):
    """Answers with its logits and those of a second head, which no one reads."""

    def __init__(self, *blocks):
        super().__init__(*blocks)
        self.branch, self.second = Block(), nn.Linear(8, 4)

    def forward(self, images):
        x = self.blocks(self.stem(images))
        return self.head(x.mean(dim=(2, 3))), self.second(self.branch(x).mean(dim=(2, 3)))


def test_sums_that_no_one_reads():
    found = find_residuals(Net(Dead(), Dead()), example=IMAGES)
    assert [(r.number, r.uses) for r in found.found] == [(1, 1), (1, 1)]
    assert "blocks.1 (Dead), addition 0: its sum does not reach the logits" in found.describe()


def test_a_branch_beside_the_logits():
    made = feynman_kac(WithBranch(Block()), members=1, noise=0.1, example=IMAGES)
    words = made.describe()
    assert "1 residual mapping\n" in words
    assert "skipped branch (Block), addition 0: its sum does not reach the logits" in words


def test_what_autograd_does_not_know_of_is_found_even_behind_zeros():
    model = Net(Detached(), Block())
    nn.init.zeros_(model.head.weight)
    assert len(find_residuals(model, example=IMAGES).found) == 2


FUSED = {
    "addcmul": lambda self, x: torch.addcmul(x, self.scale, self.conv(x).relu()),
    "addcmul_": lambda self, x: x.clone().addcmul_(self.scale, self.conv(x).relu()),
    "lerp": lambda self, x: torch.lerp(x, self.conv(x).relu(), 0.3),
    "sub": lambda self, x: x - self.conv(x).relu(),
    "baddbmm": lambda self, x: torch.baddbmm(
        x.flatten(0, 1), self.conv(x).relu().flatten(0, 1), x.flatten(0, 1)
    ).view_as(x),
}


@pytest.mark.parametrize("name", FUSED)
def test_operations_that_add_besides(name):
    kind = type("Fused", (Block,), {"forward": FUSED[name]})
    words = find_residuals(Net(kind(), Block()), example=IMAGES).describe()
    assert f"skipped blocks.0 (Fused), {name}: noise is added after sums alone" in words
    with pytest.raises(ValueError, match=rf"Fused\), {name}: .*write it as one.*blocks="):
        feynman_kac(Net(kind()), example=IMAGES)


def test_of_constants_they_are_not_listed():
    class Affine(Block):
        def forward(self, x):
            return super().forward(torch.addcmul(self.scale, x, self.scale) - self.scale)

    assert "skipped" not in find_residuals(Net(Affine()), example=IMAGES).describe()


def test_branches_that_are_added_in_place_are_no_residual_mapping():
    class Branches(Block):
        def forward(self, x):
            out = self.conv(x).relu()
            out += self.other(x).relu()
            return out

    with pytest.raises(ValueError, match="neither term is a shortcut"):
        find_residuals(Net(Branches()), example=IMAGES)
