r"""MART (Wang et al., 2020): misclassified examples weigh more in the regulariser.

.. math:: \mathrm{CE}(p(x'), y) - \log(1.0001 - \max_{k \ne y} p_k(x'))
          + \beta\, \mathrm{KL}(p(x) \| p(x'))\, (1 - p_y(x)), \qquad \beta = 5
"""

from __future__ import annotations

from torch import Tensor, nn

from enresnet.attacks.losses import rivals
from enresnet.training.objectives.base import divergence
from enresnet.training.objectives.pgd import AdversarialPGD

BETA = 5.0


class MART(AdversarialPGD):
    """Boosted cross-entropy on PGD images, and consistency weighted by doubt."""

    passes = 2

    def loss(
        self, model: nn.Module, images: Tensor, crafted: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the mean loss and the logits of the crafted images."""
        attacked, clean = model(crafted), model(images)
        log_q, log_p = attacked.log_softmax(dim=1), clean.log_softmax(dim=1)
        largest_rival = rivals(log_q, labels).amax(dim=1).exp()
        boosted = self.cross_entropy(attacked, labels) - (1.0001 - largest_rival).log().mean()
        doubt = 1 - log_p.gather(1, labels[:, None]).squeeze(1).exp()
        beta = BETA if self.recipe.beta is None else self.recipe.beta
        return boosted + beta * (divergence(log_p, log_q) * doubt).mean(), attacked
