"""An attack of the user's own: an error in its code names it, an error in the model the model."""

import pytest
import torch
from torch import nn

import enresnet
from enresnet.attacks import FGSM, Attack
from problems import SmallNet, random_problem

IMAGES, LABELS = random_problem((4, 3, 8, 8))


class Own(Attack):
    """An attack whose work is a function."""

    name = "mine"

    def __init__(self, work, *, eot=1):
        super().__init__(eot=eot)
        self.work = work

    def forward_passes(self):
        return 1

    def perturb(self, batch):
        return self.work(batch)


def flat_point(batch):
    return batch.gradient(batch.loss, batch.images.flatten(1)).view_as(batch.images)


def flat_logits(batch):
    return batch.logits(batch.images[:, :1]).new_zeros(batch.images.shape)


def wrong_sum(batch):
    return batch.images + torch.zeros(3, 5)


def wrong_loss(batch):
    return batch.gradient(lambda logits: logits - torch.zeros(7, 3), batch.images)


def missing_key(_):
    return {}["a"]


MODELS = {
    "small": SmallNet().eval(),
    "ours": enresnet.create_model("resnet8").eval(),
    "noisy": enresnet.create_model("en2_resnet8").eval(),
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("eot", [1, 3])
@pytest.mark.parametrize(
    ("work", "words", "line"),
    [
        (flat_point, "ValueError: point must be N x 3 x 8 x 8.*found 4 x 192", "flatten"),
        (flat_logits, "ValueError: point must be N x 3 x 8 x 8.*found 4 x 1 x 8 x 8", "logits"),
        (wrong_sum, "RuntimeError: The size of tensor a", r"batch.images \+ torch.zeros\(3, 5\)"),
        (wrong_loss, "RuntimeError: The size of tensor a", r"torch.zeros\(7, 3\)"),
        (missing_key, "KeyError: 'a'", "return {}"),
    ],
)
def test_an_error_in_the_attack_names_it_and_shows_the_line(model, eot, work, words, line):
    place = "test_own_attacks.py, line [0-9]+\n"
    message = rf"(?s)^attack mine \(Own\) fails, not the model: {words}.*{place}.*{line}"
    with pytest.raises(ValueError, match=message) as failed:
        Own(work, eot=eot)(MODELS[model], IMAGES, LABELS)
    assert failed.value.__cause__ is not None
    with pytest.raises(RuntimeError, match=message):
        enresnet.evaluate(MODELS[model], (IMAGES, LABELS), Own(work, eot=eot), draws=1, seed=0)


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (lambda batch: batch.images[:, :, :4], "returned 4 x 3 x 4 x 8"),
        (lambda batch: batch.images[:1], "returned 1 x 3 x 8 x 8"),
        (lambda batch: batch.images.mean(), "returned a single number"),
        (lambda _: None, "returned a NoneType"),
    ],
)
def test_what_it_returns_must_be_images(work, words):
    """One image would be copied to all, and nobody would know."""
    with pytest.raises(
        ValueError, match=f"attack mine must return images.*4 x 3 x 8 x 8; .*{words}"
    ):
        Own(work)(MODELS["small"], IMAGES, LABELS)


class Failing(nn.Module):
    """Fails as it is told to."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def forward(self, _):
        raise self.error


def follow(batch):
    return batch.gradient(batch.loss, batch.images)


@pytest.mark.parametrize("attack", [FGSM(), Own(follow)])
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("no"), "^model fails on images of 3 x 8 x 8: no"),
        (KeyError("a"), "(?s)^model fails on images of 3 x 8 x 8: KeyError: 'a'.*raise self.error"),
        (TypeError("no"), "(?s)^model fails on images of 3 x 8 x 8: TypeError: no.*line"),
    ],
)
def test_an_error_in_the_model_names_the_model(attack, error, words):
    with pytest.raises(ValueError, match=words):
        attack(Failing(error), IMAGES, LABELS)
    with pytest.raises(ValueError, match=words):
        enresnet.evaluate(Failing(error), (IMAGES, LABELS), attack)


def test_what_is_no_mistake_in_the_code_stays_as_it_is():
    class StoppedError(Exception):
        pass

    for error in (StoppedError(), MemoryError(), FileNotFoundError("no weights")):
        with pytest.raises(type(error)) as found:
            FGSM()(Failing(error), IMAGES, LABELS)
        assert found.value is error
        with pytest.raises(type(error)) as found:
            Own(Failing(error).forward)(MODELS["small"], IMAGES, LABELS)
        assert found.value is error


def test_images_that_our_network_does_not_take_are_no_fault_of_the_attack():
    with pytest.raises(ValueError, match="^images must be N x 3 x H x W with H and W at least 8"):
        Own(follow)(MODELS["ours"], IMAGES[:, :, :4], LABELS)


class Backwards(torch.autograd.Function):
    @staticmethod
    def forward(_, images):
        return images.flatten(1)[:, :4].clone()

    @staticmethod
    def backward(*_):
        raise RuntimeError("no way back")


@pytest.mark.parametrize("attack", [FGSM(), Own(follow)])
def test_a_gradient_that_fails_is_not_the_attacks(attack):
    with pytest.raises(ValueError, match="^the gradient of the model, or .* loss, fails: no way"):
        attack(Backwards.apply, IMAGES, LABELS)
