"""Sums that do not reach the logits, and sums that no trace shows, are listed as skipped."""

import functools
import operator
import warnings

import pytest
import torch
from torch import add, nn

import problems
from enresnet.models import feynman_kac, find_residuals
from enresnet.models.conversion.source import adds_activations
from problems import Net, plus, seeded

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
    "subtract": lambda self, x: torch.subtract(x, self.conv(x).relu()),
    "rsub": lambda self, x: torch.rsub(self.conv(x).relu(), x),
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


def wrapped(x, y):
    return x + y


torch.fx.wrap("wrapped")


def scripted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scripts are going out of use
        script = torch.jit.script(plus)
    x = torch.ones(2, requires_grad=True)
    for _ in range(4):  # after which it is optimised
        script(x, x).sum().backward()
    return script


SCRIPT = scripted()
SUMS = {
    "a function of another file": plus,
    "a module's attribute": lambda x, y: problems.plus(x, y),
    "a name of torch's": lambda x, y: add(x, y),
    "reduce": lambda x, y: functools.reduce(operator.add, (x, y)),
    "script": lambda x, y: SCRIPT(x, y),
    "wrap": lambda x, y: wrapped(x, y),
    "stack": lambda x, y: torch.stack([x, y]).sum(0),
    "mean": lambda x, y: torch.stack([x, y]).mean(0),
    "cat": lambda x, y: torch.cat([x.unsqueeze(0), y.unsqueeze(0)]).sum(0),
    "foreach": lambda x, y: torch._foreach_add([x], [y])[0],
    "hidden": lambda x, y: {"plus": plus}["plus"](x, y),
}


class Hidden(Block):
    """Its sum stands in a function; in one mode it cannot be traced."""

    def __init__(self, way, traceable):
        super().__init__()
        self.join, self.traceable = SUMS[way], traceable

    def forward(this, x):  # noqa: N805
        out = this.conv(x).relu()
        if not this.traceable and float(out.detach().mean()) > 1e9:
            out = out / 2
        return this.join(x, out)


@pytest.mark.parametrize("traceable", [True, False])
@pytest.mark.parametrize("way", SUMS)
def test_no_sum_of_a_shortcut_is_left_out_in_silence(way, traceable):
    residuals = find_residuals(Net(Block(), Hidden(way, traceable)), example=IMAGES)
    found, words = [r.module for r in residuals.found], residuals.describe()
    assert (found == ["blocks.0", "blocks.1"]) != ("skipped blocks.1 (Hidden)" in words)
    assert traceable or "its forward cannot be traced" in words
    if not traceable or found == ["blocks.0"]:
        with pytest.raises(ValueError, match=r"no residual .*blocks\.0 \(Hidden\): .*blocks="):
            feynman_kac(Net(Hidden(way, traceable)), example=IMAGES)


@pytest.mark.parametrize("operation", ["add", "add_"])
@pytest.mark.parametrize("overload", [True, False])
def test_additions_of_aten(operation, overload):
    packet = getattr(torch.ops.aten, operation)

    class Aten(Block):
        def forward(self, x):
            out = self.conv(x).relu()
            added = (packet.Tensor if overload else packet)(out, x)
            return out if operation == "add_" else added

    model = Net(Aten(), Block()).eval()
    made = feynman_kac(model, members=1, noise=0.1, example=IMAGES)
    assert "2 residual mappings" in made.describe()
    quiet = feynman_kac(model, members=1, noise=0.0, example=IMAGES)
    assert torch.equal(quiet(IMAGES), model(IMAGES))


def test_a_refusal_says_what_could_not_be_traced():
    class Branch(Block):
        def forward(self, x):
            return self.conv(x) if float(x.detach().mean()) > 1e9 else self.other(x)

    with pytest.raises(ValueError, match=r"blocks\.0 \(Branch\): its forward cannot be traced"):
        feynman_kac(Net(Branch()), example=IMAGES)
    assert "skipped" not in find_residuals(Net(Branch(), Block()), example=IMAGES).describe()


class ByName(Block):
    def forward(this, x):  # noqa: N805
        return this.joined(x)

    def joined(this, x):  # noqa: N805
        return add(x, this.conv(x))


class ByModule(Block):
    def forward(self, x):
        return problems.plus(x, self.conv(x))


class ByReduction(Block):
    def forward(self, x):
        return functools.reduce(operator.add, (x, self.conv(x)))


@pytest.mark.parametrize("kind", [ByName, ByModule, ByReduction])
def test_the_source_is_read_across_files(kind):
    assert adds_activations(kind())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_networks_are_converted():
    """Watching what a network runs must leave nothing in the compiler's cache."""
    model = torch.compile(Net(Block(), Block()).eval(), backend="eager")
    expected = model(IMAGES)
    quiet = feynman_kac(model, members=1, noise=0.0, example=IMAGES)
    assert "2 residual mappings" in quiet.describe()
    torch.testing.assert_close(quiet(IMAGES), expected)
