"""What is no residual mapping is listed as skipped, with the reason."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from enresnet.models import feynman_kac, find_residuals
from enresnet.models.noise import noise_modules
from problems import Net, seeded
from residual_blocks import Block

IMAGES = torch.rand(3, 3, 16, 16, generator=seeded())


class OneConvolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(8, 8, 3, padding=1)

    def dropped(self, x):
        return functional.dropout(self.conv1(x)) if self.training else self.conv1(x)


class Unspaced(OneConvolution):
    def forward(self, x):
        return x+self.dropped(x)  # fmt: skip


class Helped(OneConvolution):
    def forward(self, x):
        return self.join(x, self.dropped(x))

    def join(self, x, out):
        out += x
        return out


class Named(OneConvolution):
    def forward(self, x):
        out = self.dropped(x)
        return torch.add(input=out, other=x)


class Inherited(Unspaced):
    def forward(self, x):
        return super().forward(x.relu())


def joined(x, out):
    return sum([x, out])


class Outside(OneConvolution):
    def forward(self, x):
        return joined(x, self.dropped(x))


class Counting(nn.Module):
    """A layer that cannot be traced, adds numbers, and is no residual block."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(8, 1, 1))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, scale: float = 1.0):
        if self.training:
            self.calls.add_(1)
            self.calls = self.calls + 1
        names = "a" + "b"
        height = x.shape[2] + x.size(3) + len(names)
        return functional.dropout(x, 0.1, self.training) * (scale + 0 * height) + self.bias


class TestWhatIsSkipped:
    """Blocks that add activations and cannot be traced are listed; other modules are not."""

    @pytest.mark.parametrize("kind", [Unspaced, Helped, Named, Inherited, Outside])
    def test_however_the_addition_is_written(self, kind):
        found = find_residuals(Net(Block(), kind())).describe()
        assert f"skipped blocks.1 ({kind.__name__}): its forward differs" in found

    def test_terms_may_be_given_by_name(self):
        class Sum(Block):
            def forward(self, x):
                out = self.conv1(x).relu()
                if self.way == "method":
                    return out.add(other=x)
                return torch.add(input=out, other=x)

        model = Net(Sum(way="method"), Sum()).eval()
        assert len(find_residuals(model).found) == 2
        quiet = feynman_kac(model, members=1, noise=0.0)
        torch.testing.assert_close(quiet(IMAGES), model(IMAGES))

    @pytest.mark.parametrize("kind", [nn.TransformerEncoderLayer, nn.TransformerDecoderLayer])
    def test_layers_of_torch_with_residual_connections(self, kind):
        decodes = kind is nn.TransformerDecoderLayer

        class Attends(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = kind(8, 2, 16, batch_first=True)

            def forward(self, x):
                tokens = x.flatten(2).mT
                return self.layer(*[tokens] * (1 + decodes)).mT.unflatten(2, x.shape[2:])

        model = Net(Block(), Attends()).eval()
        if decodes:  # it can be traced
            assert "TransformerDecoderLayer: 1 module, 3 each" in find_residuals(model).describe()
            quiet = feynman_kac(model, members=1, noise=0.0)
            torch.testing.assert_close(quiet(IMAGES), model(IMAGES))
        else:
            found = find_residuals(model).describe()
            assert "skipped blocks.1.layer (TransformerEncoderLayer): its forward cannot" in found
            with pytest.raises(ValueError, match=r"blocks=\[\.\.\.\].*TransformerEncoderLayer"):
                feynman_kac(Net(Attends()))
        made = feynman_kac(model, members=1, noise=0.2, blocks=[Block, kind]).eval()
        assert len(list(noise_modules(made))) == 2

    def test_what_adds_no_activations_is_not_listed(self):
        assert "skipped" not in find_residuals(Net(Counting(), Block())).describe()

    def test_one_line_for_each_reason(self):
        found = find_residuals(Net(Block(), *(Unspaced() for _ in range(6)))).describe()
        assert found.count("skipped") == 1
        assert "skipped 6 places: blocks.1 (Unspaced), " in found
        assert ", ... blocks.6 (Unspaced): its forward differs" in found
