"""Noise injection: its law, its gradient, its stream."""

import copy
import pickle

import pytest
import torch

from enresnet.models import (
    NoiseInjection,
    create_model,
    inject_noise,
    seed_noise,
    set_noise,
    using_noise,
    without_noise,
)
from enresnet.models.noise import NoiseStream
from problems import seeded


def test_noise_is_gaussian_of_the_given_scale():
    scales = torch.tensor([0.5, 2.0, 8.0]).view(3, 1, 1, 1)
    x = scales * torch.randn(3, 4, 64, 64, generator=seeded()) + 3
    change = (inject_noise(x, 0.1, generator=seeded(1)) - x).flatten(1)
    standard = change / (0.1 * x.flatten(1).std(dim=1, keepdim=True))
    torch.testing.assert_close(standard.mean(dim=1), torch.zeros(3), rtol=0, atol=0.04)
    torch.testing.assert_close(standard.std(dim=1), torch.ones(3), rtol=0, atol=0.03)
    kurtosis = standard.pow(4).mean(dim=1)
    torch.testing.assert_close(kurtosis, torch.full((3,), 3.0), rtol=0, atol=0.25)


def test_example_std_keeps_batch_mates_apart_and_batch_std_does_not():
    x = torch.randn(4, 3, 8, 8, generator=seeded())
    other = x.clone()
    other[1:] *= 10
    for std_over, apart in (("example", True), ("batch", False)):
        one, two = (inject_noise(v, std_over=std_over, generator=seeded(1))[0] for v in (x, other))
        assert torch.equal(one, two) == apart
    expected = x + 0.1 * x.std(correction=0) * NoiseStream(seeded(1)).normal_like(x)
    torch.testing.assert_close(inject_noise(x, std_over="batch", generator=seeded(1)), expected)


@pytest.mark.parametrize("std_over", ["example", "batch"])
def test_the_gradient_flows_through_std(std_over):
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64, generator=seeded()).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda v: inject_noise(v, 0.5, std_over=std_over, generator=seeded(1)), x
    )


def test_a_flat_input_has_a_finite_gradient():
    x = torch.ones(2, 3, 4, 4, requires_grad=True)
    inject_noise(x, 0.1, generator=seeded()).sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))


def test_zero_noise_is_the_identity():
    x = torch.rand(2, 3)
    assert inject_noise(x, 0.0) is x


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_types_and_memory_formats_are_kept(dtype):
    x = torch.rand(2, 3, 8, 8).to(dtype).contiguous(memory_format=torch.channels_last)
    y = inject_noise(x)
    assert y.dtype == dtype
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert not torch.equal(x, y)


@pytest.mark.parametrize("std_over", ["example", "batch"])
def test_large_features_in_float16_stay_finite(std_over):
    x = (2000 * torch.randn(2, 64, 16, 16, generator=seeded())).half().requires_grad_()
    y = inject_noise(x, 0.1, std_over=std_over, generator=seeded(1))
    (gradient,) = torch.autograd.grad(y.float().mean(), x)
    assert y.isfinite().all()
    assert gradient.isfinite().all()
    assert float((y - x).detach().float().std()) == pytest.approx(200, rel=0.05)


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_has_no_say(training):
    layer = NoiseInjection().train(training)
    x = torch.rand(2, 3, 8, 8)
    assert not torch.equal(layer(x), layer(x))


def test_the_global_generator_is_neither_read_nor_moved():
    before = torch.random.get_rng_state()
    model = create_model("en2_resnet20", in_channels=1)
    x = torch.full((2, 1, 8, 8), 0.5)
    outputs = []
    for _ in range(2):
        model = create_model("en2_resnet20", in_channels=1, generator=seeded(3))
        outputs.append(model(x))
        torch.manual_seed(7)  # must make no difference
    assert torch.equal(*outputs)
    torch.random.set_rng_state(before)
    create_model("en1_resnet20")(torch.full((2, 3, 8, 8), 0.5))
    inject_noise(x)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_unseeded_models_differ():
    x = torch.full((1, 3, 8, 8), 0.5)
    one, two = create_model("en1_resnet20"), create_model("en1_resnet20")
    assert not torch.equal(one.members[0].stem.weight, two.members[0].stem.weight)
    two.load_state_dict(one.state_dict())
    assert not torch.equal(one.eval()(x), two.eval()(x))


def test_seeding_repeats_the_noise():
    model, x = create_model("en2_resnet20").eval(), torch.rand(2, 3, 8, 8)
    outputs = []
    for _ in range(2):
        seed_noise(model, seeded(4))
        outputs.append(model(x))
    assert torch.equal(*outputs)
    assert not torch.equal(outputs[0], model(x))


def test_switching_off_and_on():
    model, x = create_model("en1_resnet20").eval(), torch.rand(2, 3, 8, 8)
    with without_noise(model):
        quiet = model(x)
        assert torch.equal(quiet, model(x))
    assert not torch.equal(model(x), model(x))
    with using_noise(model, 5.0):
        assert (model(x) - quiet).abs().mean() > 0.01
    with pytest.raises(ValueError, match="images must be"), using_noise(model, 5.0):
        model(torch.rand(3))
    assert model.members[0].config["noise"] == 0.1
    set_noise(model, 0)
    assert torch.equal(model(x), quiet)


def test_copies_of_one_member_do_not_repeat_its_noise():
    from enresnet.models import Ensemble

    net = create_model("en1_resnet20").members[0].eval()
    twins = Ensemble([net, copy.deepcopy(net)])
    x = torch.rand(1, 3, 8, 8)
    one, two = (member(x) for member in twins.members)
    assert not torch.equal(one, two)


def test_a_model_copies_and_pickles():
    model, x = create_model("en1_resnet20").eval(), torch.rand(1, 3, 8, 8)
    twin, sent = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    first = model(x)
    assert torch.equal(first, twin(x))
    assert torch.equal(first, sent(x))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_another_device_gets_its_own_generator():
    one, two = (NoiseStream(seeded()).normal_like(torch.empty(9, device="cuda")) for _ in range(2))
    assert torch.equal(one, two)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"noise": -0.1}, "noise must be finite and at least 0"),
        ({"std_over": "channel"}, "std_over must be one of batch, example"),
    ],
)
def test_bad_input(options, words):
    with pytest.raises(ValueError, match=words):
        NoiseInjection(**options)
    with pytest.raises(ValueError, match=words):
        inject_noise(torch.rand(2, 3), **options)


def test_noise_where_there_is_no_place_for_it():
    plain = torch.nn.Linear(2, 2)
    with without_noise(plain):
        pass
    with pytest.raises(ValueError, match="no place for noise=0.1"):
        set_noise(plain, 0.1)


def test_the_standard_deviation_is_that_of_the_pixels_themselves():
    """Var is the mean squared deviation: no correction, which two pixels would show."""
    x = torch.tensor([[0.0, 2.0]])
    draws = NoiseStream(seeded(1)).normal_like(x)
    torch.testing.assert_close(inject_noise(x, 1.0, generator=seeded(1)), x + draws)


def test_bad_tensors_and_generators():
    with pytest.raises(ValueError, match="x must be floating point"):
        inject_noise(torch.ones(2, 3, dtype=torch.int64))
    with pytest.raises(TypeError, match="generator must be a torch.Generator"):
        NoiseInjection(generator=3)
