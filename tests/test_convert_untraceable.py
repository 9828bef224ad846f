"""Networks whose ``forward`` no tracer can follow: blocks are named, or nothing is noisy."""

import random

import numpy as np
import pytest
import torch
from torch.nn import functional

from enresnet.models import feynman_kac, find_residuals
from enresnet.models.noise import noise_modules
from problems import Net, seeded
from residual_blocks import Block

IMAGES = torch.rand(3, 3, 16, 16, generator=seeded())


class Branching(Block):
    """Its ``forward`` looks at the data, which no tracer can follow."""

    def forward(self, x):
        if float(x.mean()) > 1e9:
            return x
        return super().forward(x)


class TestUntraceable:
    def test_the_error_names_candidates_and_blocks_help(self):
        model = Net(Branching(), Branching()).eval()
        with pytest.raises(ValueError, match=r"cannot be traced.*blocks=.*Branching"):
            feynman_kac(model)
        for blocks in ([Branching], ["blocks.0", "blocks.1"]):
            made = feynman_kac(model, members=2, noise=0.2, blocks=blocks, generator=seeded())
            assert len(list(noise_modules(made))) == 4
            assert not torch.equal(made(IMAGES), made(IMAGES))
            assert set(made.members[0].network.state_dict()) == set(model.state_dict())
        quiet = feynman_kac(model, members=1, noise=0.0, blocks=[Branching])
        torch.testing.assert_close(quiet(IMAGES), model(IMAGES))

    def test_blocks_that_are_not_there(self):
        with pytest.raises(ValueError, match=r"found 'blocks\.9'; among them are Block"):
            feynman_kac(Net(Block()), blocks=["blocks.9"])
        with pytest.raises(ValueError, match="found 'Branching'"):
            feynman_kac(Net(Block()), blocks=[Branching])

    def test_a_forward_that_differs_in_training_is_not_traced(self):
        class Dropped(Block):
            def dropped(self, x):
                return functional.dropout(self.conv1(x)) if self.training else self.conv1(x)

            def forward(self, x):
                return x + self.dropped(x)

        with pytest.raises(ValueError, match="differs between training and evaluation"):
            feynman_kac(Net(Dropped()))
        made = feynman_kac(Net(Dropped()), members=1, blocks=[Dropped])
        assert made.train()(IMAGES).shape == (3, 4)


class Lottery(Block):
    """Stochastic depth in its own ``forward``."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def forward(self, x):
        if self.training and self.draw() < 0.5:
            return x
        return x+self.conv1(x)  # fmt: skip


class Held(Lottery):
    """It has a generator of its own."""

    def __init__(self, generator):
        super().__init__(None)
        self.generator = generator

    def forward(self, x):
        if isinstance(self.generator, torch.Generator):
            dropped = torch.rand((), generator=self.generator) < 0.5
        else:
            dropped = self.generator.random() < 0.5
        return x if dropped else x + self.conv1(x)


class TestStochasticDepth:
    """A forward that draws is left alone, whatever it draws, and the reason is given."""

    BLOCKS = (
        lambda: Lottery(lambda: torch.rand(())),
        lambda: Lottery(random.random),
        lambda: Lottery(lambda: np.random.random()),  # noqa: NPY002
        lambda: Held(torch.Generator().manual_seed(0)),
        lambda: Held(random.Random(0)),
        lambda: Held(np.random.default_rng(0)),
        lambda: Held(np.random.RandomState(0)),
    )

    @pytest.mark.parametrize("block", BLOCKS)
    def test_every_seed_gives_the_same(self, block):
        for seed in range(4):
            for start in (torch.manual_seed, random.seed, np.random.seed):
                start(seed)
            before = torch.random.get_rng_state(), random.getstate()
            with pytest.raises(ValueError, match=r"no residual .* draws random numbers.*blocks="):
                feynman_kac(Net(block()))
            found = find_residuals(Net(block(), Block()))
            assert [r.module for r in found.found] == ["blocks.1"]
            assert "skipped blocks.0" in found.describe()
            assert "draws random numbers" in found.describe()
            assert random.getstate() == before[1]
        made = feynman_kac(Net(block()), members=1, blocks=[Lottery]).train()
        assert made(IMAGES).shape == (3, 4)

    def test_the_global_generators_stand_where_they_stood(self):
        def draw():
            return torch.rand(()) + random.random() + np.random.random()  # noqa: NPY002

        model = Net(Lottery(draw))
        states = torch.random.get_rng_state, random.getstate, np.random.get_state
        before = [str(list(get())) for get in states]
        with pytest.raises(ValueError, match="draws random numbers"):
            feynman_kac(model)
        assert [str(list(get())) for get in states] == before

    def test_a_builder_whose_blocks_draw_is_refused_in_words(self):
        with pytest.raises(ValueError, match=r"blocks\.0 \(Lottery\): .*draws random.*blocks="):
            feynman_kac(
                Net(Block()), init="fresh", builder=lambda: Net(Lottery(random.random)), members=1
            )
