"""The noise as torch operators: what torch.compile and torch.export see."""

import copy

import pytest
import torch
from torch.library import opcheck
from torch.nn import functional

from enresnet import native
from enresnet.models import (
    NoiseInjection,
    create_model,
    inject_noise,
    seed_noise,
    set_noise,
    set_recompute,
    without_noise,
)
from enresnet.models.noise import NoiseStream, standard_deviation
from enresnet.models.noise_operators import draw_key, inject, inject_backward
from problems import seeded

IMAGES = torch.rand(3, 3, 16, 16, generator=seeded())


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture(params=["loops in C", "torch"])
def way(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(native, "library", lambda: None)
    elif native.library() is None:
        pytest.skip("no C compiler")
    return request.param


@pytest.mark.usefixtures("way")
class TestOperators:
    @pytest.mark.parametrize("layout", ["contiguous", "channels last", "transposed"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
    def test_torchs_own_checks(self, dtype, layout):
        x = torch.randn(4, 3, 5, 6, generator=seeded()).to(dtype)
        if layout == "channels last":
            x = x.contiguous(memory_format=torch.channels_last)
        elif layout == "transposed":
            x = x.transpose(2, 3)
        key = torch.tensor(7)
        opcheck(draw_key, (key.clone(),))
        opcheck(inject, (x.clone().requires_grad_(), key, 0.3))
        y, mean, deviation = inject(x, key, 0.3)
        opcheck(inject_backward, (torch.ones_like(y), x, y, mean, deviation))

    @pytest.mark.parametrize("shape", [(5, 40), (3, 4, 7, 7), (2, 9, 11)])
    def test_it_is_the_noise_of_the_paper(self, shape):
        x = 3 * torch.randn(shape, generator=seeded()) + 1
        y, mean, deviation = inject(x, torch.tensor(1), 0.2)
        std = standard_deviation(x, tuple(range(1, x.ndim)))
        torch.testing.assert_close(mean, x.flatten(1).mean(dim=1), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(deviation, std.flatten(), rtol=1e-4, atol=1e-5)
        many = torch.stack([inject(x, torch.tensor(key), 0.2)[0] for key in range(400)])
        spread = (many - x).std(dim=0) / (0.2 * std)
        assert (spread.mean() - 1).abs() < 0.02
        assert torch.equal(y, many[1])
        assert not torch.equal(many[1], many[2])

    def test_the_gradient_flows_through_the_standard_deviation(self):
        x = torch.randn(3, 4, 5, generator=seeded()).requires_grad_()
        weight = torch.randn(3, 4, 5, generator=seeded(1))
        y, _, _ = inject(x, torch.tensor(3), 0.5)
        draws = ((y - x) / (0.5 * standard_deviation(x, (1, 2)))).detach()
        (found,) = torch.autograd.grad((y * weight).sum(), x)
        direct = x + 0.5 * standard_deviation(x, (1, 2)) * draws
        (expected,) = torch.autograd.grad((direct * weight).sum(), x)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)

    def test_flat_and_empty_features_are_harmless(self):
        flat = torch.ones(2, 3, 4).requires_grad_()
        y, _, _ = inject(flat, torch.tensor(3), 0.5)
        assert torch.equal(y, flat)
        (gradient,) = torch.autograd.grad(y.sum(), flat)
        assert torch.equal(gradient, torch.ones(2, 3, 4))
        assert inject(torch.empty(0, 3), torch.tensor(1), 0.1)[0].shape == (0, 3)


def test_keys_do_not_repeat():
    state = torch.tensor(5)
    keys = {int(draw_key(state)) for _ in range(1000)}
    assert len(keys) == 1000


@pytest.mark.parametrize("std_over", ["example", "batch"])
def test_compiled_without_a_break_it_draws_anew_and_a_seed_repeats(std_over):
    model = create_model("en2_resnet8", std_over=std_over, generator=seeded()).eval()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        seed_noise(model, torch.Generator().manual_seed(3))
        one, two = compiled(IMAGES), compiled(IMAGES)
        assert not torch.equal(one, two)
        seed_noise(model, torch.Generator().manual_seed(3))
        assert torch.equal(compiled(IMAGES), one)
        plain = torch.stack([model(IMAGES) for _ in range(200)])
        drawn = torch.stack([compiled(IMAGES) for _ in range(200)])
    error = 5 * ((plain.var(dim=0) + drawn.var(dim=0)) / 200).sqrt()
    assert ((plain.mean(dim=0) - drawn.mean(dim=0)).abs() < error).all()
    set_noise(model, 0.0)
    torch.testing.assert_close(compiled(IMAGES), model(IMAGES), rtol=1e-4, atol=1e-4)


def test_compiled_it_starts_from_where_the_generator_stands():
    generator = seeded(5)
    models = [create_model("en1_resnet8", generator=generator).eval() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    with torch.no_grad():
        one, two = (torch.compile(m, backend="aot_eager")(IMAGES) for m in models)
    assert not torch.equal(one, two)
    first = NoiseStream(seeded(5))
    drawn = seeded(5)
    torch.rand(100, generator=drawn)
    assert NoiseStream(drawn).compiled != first.compiled
    first.manual_seed(7)
    assert NoiseStream(seeded(7)).compiled == first.compiled


def test_compiled_it_can_be_trained():
    model = create_model("en1_resnet8", generator=seeded()).train()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    loss = functional.cross_entropy(compiled(IMAGES), torch.arange(3))
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_recomputed_in_compiled_code_it_has_the_same_noise():
    layer = NoiseInjection(0.5, generator=seeded())
    state = layer.stream.get_state()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    one = compiled(IMAGES)
    layer.stream.set_state(state)
    assert torch.equal(compiled(IMAGES), one)
    assert not torch.equal(compiled(IMAGES), one)


def test_exported_it_draws_anew():
    model = create_model("en2_resnet8", generator=seeded()).eval()
    program = torch.export.export(model, (IMAGES,))
    names = {str(node.target) for node in program.graph.nodes}
    assert any("enresnet.inject_noise" in name for name in names)
    again = program.module()
    with torch.no_grad():
        assert not torch.equal(again(IMAGES), again(IMAGES))


def test_outside_of_compiled_code_nothing_changed():
    one, two = (inject_noise(IMAGES, 0.1, generator=seeded(4)) for _ in range(2))
    assert torch.equal(one, two)
    model = create_model("en2_resnet8", generator=seeded()).eval()
    other = copy.deepcopy(model)
    assert torch.equal(model(IMAGES), other(IMAGES))
    set_recompute(model, True)
    with without_noise(model):
        model(IMAGES.clone().requires_grad_()).sum().backward()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own
def test_inductor():
    model = create_model("en1_resnet8", generator=seeded()).eval()
    compiled = torch.compile(model, fullgraph=True)
    with torch.no_grad():
        assert not torch.equal(compiled(IMAGES), compiled(IMAGES))
        with without_noise(model):
            torch.testing.assert_close(compiled(IMAGES), model(IMAGES), rtol=1e-3, atol=1e-3)
