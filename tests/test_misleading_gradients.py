"""Networks trained on one long step alone: their gradients mislead, and strongest is not misled."""

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from enresnet.attacks import Square, Strongest, attack_at, list_attacks
from enresnet.attacks.strongest import search as strongest
from problems import seeded

TRAINED_AT, SIDE = 0.3, 28


def large_digits():
    """Return 28 x 28 digits: 797 to train on, and 1,000 others."""
    bunch = load_digits()
    small = torch.tensor(bunch.images / 16, dtype=torch.float32)[:, None]
    images = nn.functional.interpolate(small, SIDE, mode="bilinear").clamp(0, 1)
    order = torch.randperm(len(images), generator=seeded())
    labels = torch.tensor(bunch.target)
    return [(images[rows], labels[rows]) for rows in (order[:797], order[797:])]


def trained_on_one_step(images, labels, *, convolutions=False, epochs=20):
    """Return a network trained on FGSM images alone, at a radius at which that goes wrong."""
    generator = seeded(1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Flatten(), nn.Linear(SIDE**2, 256), nn.ReLU(), nn.Linear(256, 10)]
        if convolutions:
            layers = [nn.Conv2d(1, 16, 5, 2, 2), nn.ReLU(), nn.Conv2d(16, 32, 5, 2, 2), nn.ReLU()]
            layers += [nn.Flatten(), nn.Linear(32 * 49, 10)]
        net = nn.Sequential(*layers)
    optimiser = torch.optim.Adam(net.parameters(), 1e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(images), generator=generator).split(64):
            x = images[rows].clone().requires_grad_()
            loss = nn.functional.cross_entropy(net(x), labels[rows])
            (gradient,) = torch.autograd.grad(loss, x)
            moved = (x.detach() + TRAINED_AT * gradient.sign()).clamp(0, 1)
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(moved), labels[rows]).backward()
            optimiser.step()
    return net.eval()


def left(model, attack, images, labels):
    """Return the accuracy under an attack, in points."""
    attacked = attack(model, images, labels, batch_size=250, progress=False)
    with torch.no_grad():
        return 100 * float((model(attacked).argmax(dim=1) == labels).double().mean())


@pytest.fixture(scope="module")
def misleading():
    train, test = large_digits()
    return trained_on_one_step(*train), *test


def test_its_gradients_do_mislead(misleading):
    """One long step leaves more than many short ones, by far."""
    model, images, labels = misleading
    one, many = (left(model, attack_at(n, 0.1), images, labels) for n in ("fgsm", "ifgsm20"))
    assert one > many + 20


def test_what_square_alone_finds_is_found_where_gradients_are_weak(misleading, monkeypatch):
    """Points that gradients found may be ahead of Square for a while, and Square still wins."""
    model, images, labels = misleading
    images, labels = images[:200], labels[:200]
    searches_of, untrusted = strongest.searches_of, Strongest._untrusted

    def few(planned, *, budget, **options):
        return searches_of(planned, budget=budget // 50, **options)

    def trusted(self, contest):
        loud, blind = untrusted(self, contest)
        return loud, torch.zeros_like(blind)

    monkeypatch.setattr(strongest, "DETERMINISTIC", (strongest.Stage("itself", "ce", 1.0),))
    monkeypatch.setattr(strongest, "searches_of", few)
    monkeypatch.setattr(Strongest, "_untrusted", trusted)
    alone = left(model, Square(epsilon=0.08, generator=seeded()), images, labels)
    whole = left(model, Strongest(epsilon=0.08, generator=seeded()), images, labels)
    assert whole <= alone


def test_where_gradients_mislead_square_is_never_given_up(misleading, monkeypatch):
    """The model becomes surer along a long step; where it does not, hopeless images are left."""
    model, images, labels = misleading
    asked = []

    class Recorded(strongest.Square):
        def search(self, batch, *, give_up=None):
            asked.append(give_up)
            return super().search(batch, give_up=give_up)

    monkeypatch.setattr(strongest, "Square", Recorded)
    monkeypatch.setattr(strongest, "DETERMINISTIC", ())  # nothing is lost before Square
    Strongest(epsilon=0.1, budget=100, generator=seeded())(model, images[:100], labels[:100])
    assert int((~asked[-1]).sum()) >= 15
    linear = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 10, bias=False)).eval()
    asked.clear()
    right = linear(images[:40]).argmax(dim=1)
    Strongest(epsilon=1e-4, budget=100, generator=seeded())(linear, images[:40], right)
    assert asked[0].all()
    assert len(asked[0]) == 40


@pytest.mark.parametrize("epsilon", [0.05, 0.08])
def test_square_gives_up_what_is_hopeless_and_nothing_else(misleading, epsilon):
    """Asked to, it breaks the same images with fewer evaluations."""
    model, images, labels = misleading
    images, labels = images[:150], labels[:150]

    class Hurried(Square):
        def perturb(self, batch):
            return self.search(batch, give_up=torch.ones(len(batch.images), dtype=torch.bool))

    plain, hurried = (kind(epsilon=epsilon, generator=seeded()) for kind in (Square, Hurried))
    quick, slow = (attack.run(model, images, labels) for attack in (hurried, plain))
    assert torch.equal(*((model(x.images).argmax(dim=1) == labels) for x in (quick, slow)))
    assert quick.evaluations < 0.9 * slow.evaluations


def test_it_is_at_or_below_each_attack_on_some_images(misleading):
    model, images, labels = misleading
    images, labels = images[:150], labels[:150]
    whole = left(model, Strongest(epsilon=0.1, generator=seeded()), images, labels)
    for name in ("fgsm", "pgd20", "apgd100", "square300"):
        assert whole <= left(model, attack_at(name, 0.1, seed=0), images, labels) + 0.3


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.1, 0.3])
@pytest.mark.parametrize("convolutions", [False, True])
def test_it_is_at_or_below_each_of_our_attacks(convolutions, epsilon):
    """Each alone with its defaults, on the same 1,000 images."""
    train, (images, labels) = large_digits()
    model = trained_on_one_step(*train, convolutions=convolutions)
    whole = left(model, attack_at("strongest", epsilon, seed=0), images, labels)
    for name in list_attacks():
        # C&W has no ball, l2 another one, and AutoAttack is not ours.
        if name == "strongest" or name.startswith(("autoattack", "cw")) or "_l2" in name:
            continue
        alone = left(model, attack_at(name, epsilon, seed=0), images, labels)
        assert whole <= alone + 0.3, name
