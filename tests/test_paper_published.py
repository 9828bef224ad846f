"""The paper as data: its numbers, found again in places that a slip of the pen would show."""

from collections import Counter

import pytest

from enresnet.models import count_parameters, list_models
from enresnet.models.names import parse_name
from enresnet.paper import load_claims, load_paper
from enresnet.paper.published import METRICS, Network
from enresnet.training import load_recipe

PAPER = load_paper()
CELLS = {
    "table1": 9,
    "table2": 40,
    "table3": 18,
    "table4": 4,
    "table5": 16,
    "table6": 6,
    "table7": 16,
    "table8": 8,
    "table9": 6,
    "table10": 6,
    "trades": 2,
    "mask": 3,
    "simple": 12,
}
# The sum of all values of a table, added up from the paper's source.
SUMS = {
    "table1": 837.95,
    "table2": 2546.08,
    "table3": 1208.97,
    "table4": 279.80,
    "table5": 565.88,
    "table6": 221.09,
    "table7": 1074.29,
    "table8": 494.55,
    "table9": 404.10,
    "table10": 244.22,
}


def values(table, model, source=None):
    (row,) = (
        row
        for row in PAPER.tables[table].rows
        if row.network.model == model and (row.source.model if row.source else None) == source
    )
    return [cell.value for cell in row.cells]


def test_the_tables_are_complete():
    assert {key: sum(len(r.cells) for r in t.rows) for key, t in PAPER.tables.items()} == CELLS


@pytest.mark.parametrize("key", SUMS)
def test_the_values_add_up(key):
    """One wrong digit would show, wherever it is."""
    total = sum(cell.value for row in PAPER.tables[key].rows for cell in row.cells)
    assert total == pytest.approx(SUMS[key])


@pytest.mark.parametrize(
    ("table", "model", "source", "expected"),
    [
        ("table1", "en2_resnet44", None, [93.54]),
        ("table2", "resnet110", None, [82.19, 57.61, 52.02, 62.92]),
        ("table3", "en2_resnet44", "resnet44", [64.52, 61.23, 76.99]),
        ("table3", "resnet44", "en2_resnet44", [63.87, 60.66, 75.83]),
        ("table4", "en5_resnet20", None, [70.22]),
        ("table5", "resnet44", None, [50.38, 28.40, 25.81, 36.06]),
        ("table6", "en2_resnet20", "resnet20", [34.15, 33.34, 48.21]),
        ("table7", "en2_resnet110+en1_wrn34_10", None, [85.62, 62.48, 57.94, 70.20]),
        ("table8", "wrn14_2", None, [78.37, 52.93, 48.85, 60.30]),
        ("table9", "en1_resnet20+en1_resnet32", None, [81.56, 51.99, 68.62]),
        ("table10", "en1_resnet20+en1_resnet32", None, [53.07, 27.01, 42.23]),
        ("trades", "wrn34_10", None, [84.92, 56.61]),
        ("mask", "en5_resnet20", None, [0.03]),
        ("simple", "resnet20+resnet44", None, [77.92, 54.73, 51.47, 61.77]),
    ],
)
def test_a_row_of_each_table(table, model, source, expected):
    assert values(table, model, source) == expected


def test_no_cell_is_there_twice_and_one_network_has_one_accuracy():
    places = Counter((c.table, c.network, c.source, c.metric) for c in PAPER.cells())
    assert max(places.values()) == 1
    found = {}
    for cell in PAPER.cells():  # En2ResNet20 is in Tables 2 and 8
        known = found.setdefault((cell.network, cell.source, cell.metric), cell.value)
        assert known == cell.value, cell


def test_every_model_is_one_of_the_registry():
    models = {cell.network.model for cell in PAPER.cells()}
    models |= {cell.source.model for cell in PAPER.cells() if cell.source}
    for model in models:
        parse_name(model)
    assert set(list_models()) <= models  # what enresnet models lists is in some table
    assert all(cell.metric in METRICS for cell in PAPER.cells())
    assert {cell.network.data for cell in PAPER.cells()} == {"cifar10", "cifar100"}


def test_parts_of_an_integrated_network_are_trained_robustly():
    network = Network("en2_resnet110+en1_wrn34_10", "integrated", "cifar10")
    assert [part.model for part in network.parts] == ["en2_resnet110", "en1_wrn34_10"]
    assert {part.training for part in network.parts} == {"robust"}
    assert Network("en1_resnet20+en1_resnet32", "learned_weights", "cifar10").parts == ()


def test_the_text_repeats_its_tables_but_for_one_number():
    differing = [quote for quote in PAPER.quotes if quote.value != quote.cell.value]
    (quote,) = differing
    assert (quote.cell.network.model, quote.value, quote.cell.value) == (
        "en2_resnet110",
        53.05,
        53.03,
    )
    assert quote.cell.note  # and it is marked


def test_the_gains_of_the_text_are_those_of_the_tables():
    for gain in PAPER.gains:
        found = gain.first.value - gain.second.value
        assert found == pytest.approx(gain.value, abs=0.5 if gain.about else 1e-9)
    assert 1.33 in [gain.value for gain in PAPER.gains]


def test_sizes_of_the_text_are_those_of_our_networks():
    for model, millions in PAPER.parameters.items():
        assert count_parameters(model) / 1e6 == pytest.approx(millions, abs=0.01)


def test_the_recipe_is_the_papers():
    recipe, paper = load_recipe("paper"), PAPER.settings
    assert [round(m * recipe.epochs) for m in recipe.milestones] == paper["drops"]
    for name in ("epochs", "steps", "learning_rate"):
        assert getattr(recipe, name) == paper[name]
    assert (recipe.epsilon, recipe.step_size) == (8 / 255, 2 / 255)
    assert (paper["epsilon"], paper["step_size"]) == ("8/255", "2/255")


def test_a_contradiction_says_what_the_paper_says():
    """The paper praises the integrated model's robust accuracy; it does not call it the best."""
    (found,) = (one for one in PAPER.contradictions if one.where == "Sec. 4.2 and Table 7")
    assert found.says == (
        "Of the jointly trained ensembles of Sec. 4.1, when more ResNets and larger models are "
        "involved in the ensemble, both natural and robust accuracies are improved."
    )
    part, whole = (
        PAPER.find(Network(model, training, "cifar10"), "natural")
        for model, training in (
            ("en1_wrn34_10", "robust"),
            ("en2_resnet110+en1_wrn34_10", "integrated"),
        )
    )
    assert f"{whole.value:.2f}, below the {part.value:.2f} of" in found.finds


def test_contradictions_are_marked_at_their_cells():
    assert len(PAPER.contradictions) == 6
    noted = {(c.table, c.network.model, c.metric) for c in PAPER.cells() if c.note}
    named = {(c.table, c.network.model, c.metric) for f in PAPER.contradictions for c in f.cells}
    assert noted == named
    assert {
        ("table1", "en2_resnet110", "natural"),
        ("table2", "en2_resnet110", "natural"),
        ("table2", "en2_resnet110", "ifgsm20"),
        ("table7", "en2_resnet110+en1_wrn34_10", "natural"),
    } <= noted


# Claims.


def test_every_claim_has_its_effect_from_the_tables():
    for claim in load_claims().values():
        assert (claim.paper_effect is None) == (claim.metric == "strongest"), claim.key
        assert claim.statement.endswith(".")
        assert "{" not in claim.statement
    effects = {key: claim.paper_effect for key, claim in load_claims().items()}
    assert effects["noise-helps-en1_resnet20-natural"] == 2.10
    assert effects["blind-en5_resnet20-from-resnet20-ifgsm20"] == 4.25
    assert effects["blind-en2_resnet44-from-resnet44-cw"] == 1.16
    assert effects["little-without-noise-en2_resnet20-without_noise-natural"] == 0.64
    assert effects["no-gradient-masking-en5_resnet20-ifgsm20"] == 0.03
    assert effects["as-robust-as-trades-en1_wrn34_10-ifgsm20"] == -0.01
    assert effects["cifar100-learned-weights-en1_resnet20+en1_resnet32-learned_weights-cw"] == 0.73


def test_a_claim_has_the_metrics_that_the_text_names():
    """Integrated networks: "better robust accuracy"; the wide network: natural, IFGSM20 and C&W."""
    found: dict[str, set[str]] = {"integration-beats-parts": set(), "ensemble-beats-width": set()}
    for key, claim in load_claims().items():
        for name, metrics in found.items():
            if key.startswith(name):
                metrics.add(claim.metric)
    assert found["integration-beats-parts"] == {"fgsm", "ifgsm20", "cw"}
    assert found["ensemble-beats-width"] == {"natural", "ifgsm20", "cw"}


def test_the_paper_contradicts_three_of_its_claims():
    contradicted = {key for key, claim in load_claims().items() if claim.contradicted}
    simple = "en2_resnet20-over-resnet20+resnet44-integrated"
    assert contradicted == {
        "natural-ensembles-help-en2_resnet110-natural",
        "larger-bases-help-en2_resnet110-natural",
        f"noise-beats-simple-ensembles-{simple}-ifgsm20",
    }


@pytest.mark.parametrize(
    ("key", "low", "high", "decision"),
    [
        ("noise-helps-en1_resnet20-natural", 0.1, 3.0, "holds"),
        ("noise-helps-en1_resnet20-natural", 0.0, 3.0, "undecided"),
        ("noise-helps-en1_resnet20-natural", -3.0, -0.1, "fails"),
        ("little-without-noise-en2_resnet20-without_noise-cw", -4.0, 1.9, "holds"),
        ("little-without-noise-en2_resnet20-without_noise-cw", 1.0, 2.1, "undecided"),
        ("little-without-noise-en2_resnet20-without_noise-cw", 2.1, 3.0, "fails"),
        ("as-robust-as-trades-en1_wrn34_10-ifgsm20", -0.9, 0.9, "holds"),
        ("as-robust-as-trades-en1_wrn34_10-ifgsm20", -1.1, 0.9, "undecided"),
        ("as-robust-as-trades-en1_wrn34_10-ifgsm20", -3.0, -1.1, "fails"),
        ("as-robust-as-trades-en1_wrn34_10-ifgsm20", 1.1, 3.0, "fails"),
    ],
)
def test_an_interval_decides(key, low, high, decision):
    assert load_claims()[key].decide(low=low, high=high) == decision
