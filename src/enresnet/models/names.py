"""The grammar of model names: ``[enK_]BASE[+...]``; ``registry.py`` builds what they name.

BASE is ``resnetD`` (D = 6n+2; 9n+2 for ``resnetD_bottleneck``) or ``wrnD_K`` (D = 6n+4, and the
paper's ``wrn14_2``), a network of another library, ``timm:NAME`` or ``torchvision:NAME``, or a
function of the user's own that builds one, ``module.path:name``. ``enK_`` means K noise-injected
networks and their average; without it the network is alone and has no noise. The paper's own
spelling, such as En5ResNet20 or En2ResNet110&En1WideResNet34-10, is understood.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from enresnet.common import checks
from enresnet.common.user_code import is_code_name
from enresnet.models.architecture import (
    WIDTHS,
    Architecture,
    resnet_blocks,
    wide_resnet_blocks,
)

# The networks of the paper's tables, in their order.
PAPER_MODELS = (
    "resnet20",
    "en1_resnet20",
    "en2_resnet20",
    "en5_resnet20",
    "en1_resnet20+en1_resnet32",
    "en2_resnet32",
    "resnet44",
    "en1_resnet44",
    "en2_resnet44",
    "resnet110",
    "en2_resnet110",
    "wrn14_2",
    "en1_wrn34_10",
    "en2_resnet20+en5_resnet20",
    "en2_resnet44+en5_resnet20",
    "en2_resnet110+en5_resnet20",
    "en2_resnet110+en1_wrn34_10",
)

_PART = re.compile(
    r"(?:en_?(?P<members>[0-9]+)_?)?"
    r"(?:(?P<resnet>resnet)[_-]?(?P<depth>[0-9]+)(?P<bottleneck>_bottleneck)?"
    r"|(?P<wide>wrn|wide_?resnet)[_-]?(?P<wide_depth>[0-9]+)[_-](?P<widen>[0-9]+))"
)
LIBRARIES = ("timm", "torchvision")  # whose networks have names
_MEMBERS = re.compile(r"en_?(?P<members>[0-9]+)_(?P<rest>.*)", re.IGNORECASE)
# Names in a library, and a tag after a dot. Nothing else: timm would fetch "hf-hub:somebody/model".
_LIBRARY_NAME = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)?", re.ASCII)


@dataclass(frozen=True)
class ExternalPart:
    """One term of a model's name: a network of another library, or of the user's own code."""

    members: int | None  # None: a single network without noise
    source: str  # LIBRARY:NAME or module.path:name

    def __str__(self) -> str:
        return f"{'' if self.members is None else f'en{self.members}_'}{self.source}"


@dataclass(frozen=True)
class Part:
    """One term of a model's name: a network of ours."""

    members: int | None  # None: a single network without noise
    depth: int
    widen: int | None  # None: a ResNet
    bottleneck: bool

    def __str__(self) -> str:
        prefix = "" if self.members is None else f"en{self.members}_"
        if self.widen is not None:
            return f"{prefix}wrn{self.depth}_{self.widen}"
        return f"{prefix}resnet{self.depth}{'_bottleneck' * self.bottleneck}"

    @property
    def architecture(self) -> Architecture:
        """The shape of each of its networks."""
        if self.widen is not None:
            widths = tuple(width * self.widen for width in WIDTHS)
            return Architecture(wide_resnet_blocks(self.depth), widths)
        blocks, block = resnet_blocks(self.depth, "bottleneck" if self.bottleneck else None)
        return Architecture(blocks, WIDTHS, block)


def list_models() -> list[str]:
    """Return the names of the paper's networks.

    :func:`~enresnet.models.create_model` takes many more names: any ``[enK_]BASE[+...]``.

    Returns:
        The names in the order of the paper's tables.

    Example::

        print(enresnet.list_models())  # ['resnet20', 'en1_resnet20', ...]
    """
    return list(PAPER_MODELS)


def canonical_name(name: str) -> str:
    """Return a model's name in this package's spelling, such as en5_resnet20 for En5ResNet20.

    Args:
        name: A model's name in this package's or in the paper's spelling.

    Returns:
        The spelling under which results and files show the model.

    Raises:
        TypeError: ``name`` is not a string.
        ValueError: It names no model; the error names near matches.

    Example::

        from enresnet.models import canonical_name

        canonical_name("En2ResNet110&En1WideResNet34-10")  # en2_resnet110+en1_wrn34_10
    """
    return "+".join(map(str, parse_name(name)))


def paper_name(name: str) -> str:
    """Return a model's name in the paper's spelling, such as En5ResNet20 for en5_resnet20.

    Args:
        name: A model's name in this package's or in the paper's spelling.

    Returns:
        The name as the paper's tables have it.

    Raises:
        TypeError: ``name`` is not a string.
        ValueError: It names no model; the error names near matches.

    Example::

        from enresnet.models import paper_name

        paper_name("en2_resnet110+en1_wrn34_10")  # En2ResNet110&En1WideResNet34-10
    """
    return "&".join(map(_paper_spelling, parse_name(name)))


def is_noisy(name: str) -> bool:
    """Return whether the model called ``name`` injects noise, in any of its parts.

    Args:
        name: A model's name.

    Returns:
        Whether one of its parts is named ``enK_``.

    Raises:
        TypeError: The name is not a string.
        ValueError: The name is unknown.

    Example::

        from enresnet.models import is_noisy

        print(is_noisy("en2_resnet20"), is_noisy("resnet20"))  # True False
    """
    return any(part.members is not None for part in parse_name(name))


def count_parameters(name: str, *, num_classes: int = 10, in_channels: int = 3) -> int:
    """Return how many parameters the model called ``name`` has, without building it.

    Args:
        name: A model's name.
        num_classes: The number of classes; 10 by default.
        in_channels: The colour channels of the images; 3 by default.

    Returns:
        The number of trained parameters, over all members of an ensemble.

    Raises:
        TypeError: ``name`` is not a string.
        ValueError: It names no model, and the error names near matches; or a network that is not
            ours.

    Example::

        from enresnet.models import count_parameters

        count_parameters("resnet20")  # about 0.27 million
    """
    total = 0
    for part in parse_name(name):
        if isinstance(part, ExternalPart):
            raise ValueError(
                f"name must be a network of ours: that of {part.source} is known once it is built"
            )
        shape = part.architecture
        total += (part.members or 1) * shape.parameters(
            num_classes=num_classes, in_channels=in_channels
        )
    return total


def base_name(architecture: Architecture) -> str | None:
    """Return the BASE that names an architecture, such as resnet20; None if none does."""
    blocks, widen = architecture.blocks, architecture.widths[0] // WIDTHS[0]
    if architecture.widths != tuple(widen * width for width in WIDTHS):
        return None
    if architecture.block == "bottleneck":
        return f"resnet{9 * blocks + 2}_bottleneck" if widen == 1 else None
    if widen == 1:
        return f"resnet{6 * blocks + 2}"
    return "wrn14_2" if (blocks, widen) == (2, 2) else f"wrn{6 * blocks + 4}_{widen}"


def names_code(name: str) -> bool:
    """Return whether building the model called ``name`` imports the user's own code.

    Args:
        name: A model's name.

    Returns:
        Whether one of its parts is ``module.path:name``.

    Raises:
        TypeError: The name is not a string.
        ValueError: The name is unknown.

    Example::

        from enresnet.models import names_code

        print(names_code("en2_my_module:build"), names_code("en2_timm:resnet18"))  # True False
    """
    return any(isinstance(part, ExternalPart) and is_code(part.source) for part in parse_name(name))


def is_code(source: str) -> bool:
    """Return whether a source, LIBRARY:NAME or module.path:name, is the user's own code."""
    return source.partition(":")[0] not in LIBRARIES


def parse_name(name: str) -> list[Part | ExternalPart]:
    """Return the parts of a model's name; a name we cannot build gets near matches."""
    if not isinstance(name, str):
        raise TypeError(f"name must be a string such as 'en5_resnet20', found {checks.brief(name)}")
    return [_parse_part(term, name) for term in re.split(r"[+&]", name)]


def _parse_part(term: str, name: str) -> Part | ExternalPart:
    if ":" in term:
        return _parse_external(term.strip(), name)
    term = re.sub(r"\$_\{?([0-9]+)\}?\$", r"\1", term.strip()).lower()  # En$_5$ResNet20
    where = f"unknown model {checks.brief(term)}"
    where += f" in {checks.brief(name)}" if term != name else ""
    match = _PART.fullmatch(term)
    if match is None:
        raise ValueError(
            f"{where}: a name is [enK_]BASE[+...] with BASE resnetD, wrnD_K, timm:NAME, "
            "torchvision:NAME or module.path:function" + checks.did_you_mean(term, _NEAR_NAMES)
        )
    try:
        members = None
        if match["members"] is not None:
            members = checks.integer("the number of members", int(match["members"]), low=1)
        if match["wide"]:
            depth, widen = int(match["wide_depth"]), int(match["widen"])
            checks.integer("the width", widen, low=1)
            wide_resnet_blocks(depth)
            return Part(members, depth, widen, bottleneck=False)
        depth = int(match["depth"])
        _, block = resnet_blocks(depth, "bottleneck" if match["bottleneck"] else None)
        return Part(members, depth, None, bottleneck=block == "bottleneck")
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None  # it names the nearest that there are


def _parse_external(term: str, name: str) -> ExternalPart:
    members, source = None, term
    if match := _MEMBERS.fullmatch(term):
        members = checks.integer("the number of members", int(match["members"]), low=1)
        source = match["rest"]
    library, _, own = source.partition(":")
    if library.lower() in LIBRARIES:
        if _LIBRARY_NAME.fullmatch(own) is None:
            raise ValueError(
                f"unknown model {checks.brief(name)}: {library} is followed by the name of one of "
                f"its networks, such as {library}:resnet18; found {checks.brief(own)}"
            )
        return ExternalPart(members, f"{library.lower()}:{own}")
    if not is_code_name(source):
        raise ValueError(
            f"unknown model {checks.brief(name)}: with a colon it is timm:NAME, torchvision:NAME, "
            "or a function as module.path:name"
        )
    return ExternalPart(members, source)


def _paper_spelling(part: Part | ExternalPart) -> str:
    if isinstance(part, ExternalPart):
        return str(part)
    prefix = "" if part.members is None else f"En{part.members}"
    if part.widen is None:
        return f"{prefix}ResNet{part.depth}"
    wide = "WRN-" if part.members is None else "WideResNet"
    return f"{prefix}{wide}{part.depth}-{part.widen}"


_BASES = ("resnet20", "resnet32", "resnet44", "resnet56", "resnet110", "wrn14_2", "wrn34_10")
_NEAR_NAMES = tuple(
    prefix + base for base in _BASES for prefix in ("", *(f"en{k}_" for k in range(1, 11)))
)
