"""See the defence: one image, one attack, a network and its Feynman-Kac ensemble side by side."""

from typing import TYPE_CHECKING

from enresnet.common.lazy import load_on_first_use

if TYPE_CHECKING:
    from enresnet.demo.experiment import Answer as Answer
    from enresnet.demo.experiment import DemoResult as DemoResult
    from enresnet.demo.experiment import DemoSettings as DemoSettings
    from enresnet.demo.experiment import Side as Side
    from enresnet.demo.experiment import attack_pair as attack_pair
    from enresnet.demo.networks import Pair as Pair
    from enresnet.demo.networks import list_pairs as list_pairs
    from enresnet.demo.networks import pair_of_runs as pair_of_runs
    from enresnet.demo.upload import read_upload as read_upload
    from enresnet.demo.wording import what_happened as what_happened

__all__ = load_on_first_use(
    __name__,
    {
        "experiment": "Answer DemoResult DemoSettings Side attack_pair",
        "networks": "Pair list_pairs pair_of_runs",
        "upload": "read_upload",
        "wording": "what_happened",
    },
)
