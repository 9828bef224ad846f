"""Odd tensors get a sentence from the gate, huge numbers stay numbers, and the ball holds."""

from fractions import Fraction

import pytest
import torch
from torch import nn

from enresnet.attacks import FGSM, IFGSM, PGD, CarliniWagner, Strongest
from enresnet.attacks.geometry import BALLS
from enresnet.evaluation import evaluate
from enresnet.models import create_model
from problems import Linear, SmallNet, random_problem, seeded

IMAGES, LABELS = random_problem((4, 3, 8, 8))


def nested():
    layout = torch.jagged
    return torch.nested.nested_tensor([torch.rand(2, 3), torch.rand(4, 3)], layout=layout)


@pytest.mark.parametrize(
    ("images", "found", "remedy"),
    [
        (lambda: IMAGES.to("meta"), "device meta", "load the images"),
        (lambda: IMAGES.to_sparse(), "torch.sparse_coo", r"images.to_dense\(\)"),
        (lambda: IMAGES.flatten(1).to_sparse_bsr((2, 2)), "torch.sparse_bsr", r"to_dense\(\)"),
        (lambda: IMAGES.to(torch.complex64), "torch.complex64", "images.real"),
        (lambda: IMAGES.to(torch.float8_e5m2), "torch.float8_e5m2", r"images.float\(\)"),
        (nested, "nested tensor", "torch.stack"),
        (lambda: IMAGES.bool(), "torch.bool", "by 255"),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_images_of_other_kinds(images, found, remedy):
    with pytest.raises(TypeError, match=f"images must be a dense tensor.*{found}.*{remedy}"):
        FGSM()(SmallNet(), images(), LABELS)


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        (LABELS.to("meta"), "device meta"),
        (LABELS.to_sparse(), "sparse_coo"),
        (LABELS.to(torch.complex64), "complex64"),
        (LABELS.numpy(), r"ndarray; torch.tensor\(labels\)"),
    ],
)
def test_labels_of_other_kinds(labels, found):
    with pytest.raises(TypeError, match=f"labels must be a tensor of integers.*{found}"):
        FGSM()(SmallNet(), IMAGES, labels)


@pytest.mark.parametrize("eot", [1, 2])
@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (IMAGES.double(), LABELS, r"images.*float64 and a model in float32.*images.to\(torch.fl"),
        (IMAGES.permute(0, 2, 3, 1), LABELS, r"images.*x 3 x.*4 x 8 x 8 x 3.*permute\(0, 3, 1"),
        (IMAGES[0], LABELS[:1], r"labels must be.*found shape \(1,\).*images\[None\]"),
        (IMAGES[0], LABELS[0], r"labels must be.*found shape \(\).*images\[None\]"),
        (IMAGES[0, 0, 0], LABELS, r"images must be N x .*images\[None\]"),
        (IMAGES[:, :1], LABELS, "images must be N x 3 x .*4 x 1 x 8 x 8"),
        (IMAGES[:, :, :0], LABELS, r"images must hold pixels, found shape \(4, 3, 0, 8\)"),
    ],
)
@pytest.mark.parametrize(
    "model",
    [SmallNet().eval(), create_model("en1_resnet8", num_classes=4, generator=seeded()).eval()],
    ids=["SmallNet", "ours"],
)
def test_types_and_shapes_that_a_model_does_not_take(model, images, labels, words, eot):
    with pytest.raises(ValueError, match=words):
        FGSM(eot=eot)(model, images, labels)


def test_half_precision_images_with_a_float_model():
    with pytest.raises(ValueError, match="found float16 and a model in float32"):
        FGSM()(SmallNet(), IMAGES.half(), LABELS)
    with pytest.raises(ValueError, match="model fails on images of 3 x 8 x 8 in float16"):
        FGSM()(lambda x: SmallNet()(x), IMAGES.half(), LABELS)
    with pytest.raises(ValueError, match="found float16 and a model in float32"):
        evaluate(SmallNet(), (IMAGES.half(), LABELS), [])


def test_an_error_of_the_models_own_is_still_what_it_was():
    class OwnError(RuntimeError):
        pass

    def broken(_):
        raise OwnError("mine")

    with pytest.raises(OwnError, match="^mine$"):
        FGSM()(broken, IMAGES, LABELS)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("space", ["tanh", "pixel"])
@pytest.mark.parametrize(
    ("factor", "options"),
    [
        (1e20, {}),
        (1e38, {}),
        (1.0, {"c": 1e30}),
        (1.0, {"c": 1e300}),
        (1.0, {"step_size": 1e300}),
        (1e20, {"c": 1e30, "kappa": 1e30}),
    ],
)
@pytest.mark.filterwarnings("ignore:the model")  # which may overflow, and then says so
def test_carlini_wagner_stays_in_the_box_whatever_the_model(dtype, space, factor, options):
    net = SmallNet().eval()

    def model(x):
        return net(x.float()) * factor

    attack = CarliniWagner(space=space, steps=8, **options)
    found = attack(model, IMAGES.to(dtype), LABELS)
    assert 0 <= found.min() <= found.max() <= 1  # false for NaN


def test_huge_logits_are_attacked_like_any_others():
    """Adam does not ask how large a gradient is, only the size of the change is outweighed."""
    net = SmallNet().eval()
    images, _ = random_problem((40, 3, 8, 8))
    labels = net(images).argmax(dim=1)
    found = [
        net(CarliniWagner(step_size=5e-3)(lambda x, f=f: f * net(x), images, labels)).argmax(dim=1)
        for f in (1e3, 1e20)
    ]
    assert torch.equal(*found)
    assert (found[0] == labels).double().mean() < 0.9


@pytest.mark.parametrize(
    "attack", [CarliniWagner(steps=2), FGSM(), Strongest(budget=100, generator=seeded())]
)
@pytest.mark.filterwarnings("ignore:the model's gradient")
def test_a_model_that_overflows_is_reported(attack):
    net = nn.Sequential(nn.Flatten(), Linear(192, 4, bias=1.0))
    with pytest.warns(UserWarning, match="model overflows: logits of 4 images are infinite"):
        attack(lambda x: (net(x).abs() + 5) * 1e38, IMAGES, LABELS, batch_size=3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_the_ball_holds_in_exact_arithmetic(norm, dtype):
    for seed, (pixels, epsilon) in enumerate(
        (d, e) for d in (1, 7, 192) for e in (0.5, 0.1, 1 / 3, 8 / 255, 1e-16, 1e-300)
    ):
        images = torch.rand(6, pixels, generator=seeded(seed), dtype=torch.float64).to(dtype)
        ball = BALLS[norm](images, epsilon)
        start = ball.centre + torch.randn(ball.centre.shape, generator=seeded(seed)).to(ball.centre)
        points = ball.settle(ball.nearest(start))
        for point, image in zip(points.double().tolist(), images.double().tolist(), strict=True):
            change = [abs(Fraction(a) - Fraction(b)) for a, b in zip(point, image, strict=True)]
            if norm == "l2":
                assert sum(c**2 for c in change) <= Fraction(epsilon) ** 2
            else:
                assert max(change) <= Fraction(epsilon)


@pytest.mark.parametrize("kind", [FGSM, IFGSM, PGD])
def test_attacks_in_float64_stay_in_the_l2_ball_to_the_last_bit(kind):
    images, labels = random_problem((20, 3, 8, 8))
    images, model = images.double(), Linear(192, 4).double()
    change = kind(norm="l2", epsilon=0.1)(model, images, labels) - images
    assert (change.flatten(1).norm(dim=1) <= 0.1).all()
