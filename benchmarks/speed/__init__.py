"""Speed, side by side: each benchmark runs the rivals in turn and gives the median of the ratios.

``make bench`` runs them. A machine's moods touch rivals that run in turn alike, so they
cancel in the ratio of each turn; the spread is that of the ratios.
"""

from __future__ import annotations

from speed.attacks import cw_vs_art, ifgsm_eot_vs_foolbox, ifgsm_eot_vs_torchattacks
from speed.foreign import FOREIGN
from speed.growth import growth
from speed.steps import (
    compiled_step_en1,
    compiled_step_timm,
    fraction_of_convolution_limit,
    noisy_over_noiseless,
    train_step_en1,
    train_step_en5,
)

BENCHMARKS = {
    "train_step_vs_plain.en1_resnet20": train_step_en1,
    "train_step_vs_plain.en5_resnet20": train_step_en5,
    "train_step_vs_compiled.en1_resnet20": compiled_step_en1,
    "train_step_vs_compiled.timm_resnet18": compiled_step_timm,
    "fraction_of_convolution_limit": fraction_of_convolution_limit,
    "noisy_over_noiseless": noisy_over_noiseless,
    "ifgsm_eot_vs_torchattacks": ifgsm_eot_vs_torchattacks,
    "ifgsm_eot_vs_foolbox": ifgsm_eot_vs_foolbox,
    "cw_vs_art": cw_vs_art,
    "growth": growth,
    **FOREIGN,
}
