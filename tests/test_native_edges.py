"""The loops in C at their edges: ends of rows, torch's defaults, second derivatives."""

import pytest
import torch

from enresnet import native
from enresnet.models import create_model, inject_noise, seed_noise, set_noise
from enresnet.models.ensemble import set_recompute
from problems import seeded

needs_loops = pytest.mark.skipif(native.library() is None, reason="needs a C compiler")


@needs_loops
@pytest.mark.parametrize("count", [1, 5, 31, 33, 4097])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_end_of_a_row_adds_nothing_to_its_deviation(count, dtype):
    base = 10_000 if dtype == torch.float32 else 8
    x = (base + torch.arange(count) % 2).to(dtype).expand(256, count).contiguous()
    added = inject_noise(x, 1.0, generator=seeded()).double() - x.double()
    expected = x[0].double().std(correction=0)
    assert abs(added.double().square().mean().sqrt() - expected) <= 0.25 * expected
    flat = torch.full((3, count), 3.3).to(dtype)
    assert torch.equal(inject_noise(flat, 1.0, generator=seeded()), flat)


@needs_loops
@pytest.mark.parametrize("default", [torch.float16, torch.bfloat16, torch.float64])
def test_what_new_tensors_are_by_default_does_not_reach_the_loops(default):
    network = create_model("en1_resnet8", generator=seeded()).eval().requires_grad_(False)
    images = torch.rand(64, 3, 16, 16, generator=seeded()).requires_grad_()

    def answers():
        seed_noise(network, seeded())
        logits = network(images)
        (gradient,) = torch.autograd.grad(logits.square().sum(), images)
        return logits, gradient, inject_noise(images.detach(), generator=seeded())

    expected = answers()
    torch.set_default_dtype(default)
    try:
        found = answers()
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.device("meta"):
        elsewhere = answers()
    for one, two, three in zip(expected, found, elsewhere, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


@needs_loops
@pytest.mark.parametrize("kind", ["frozen", "noisy", "lean"])
def test_a_second_derivative_is_refused_rather_than_wrong(kind):
    network = create_model("en2_resnet8" if kind == "lean" else "en1_resnet8").eval()
    network.requires_grad_(kind != "frozen")
    set_recompute(network, kind == "lean")
    if kind == "lean":
        set_noise(network, 0)
    images = torch.rand(2, 3, 16, 16, generator=seeded())
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.functional.hessian(lambda x: network(x).square().sum(), images)
    with pytest.raises(RuntimeError, match="no second derivative"):
        network(images.requires_grad_()).sum().backward(create_graph=True)
