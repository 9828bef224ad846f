"""The house is as CONTRIBUTING says: which file may know which, and what a public name tells."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "enresnet"

# Data flows from left to right: a room imports from itself and from rooms to its left.
ROOMS = [
    "common",
    "native",
    "data",
    "models",
    "attacks",
    "evaluation",
    "training",
    "pde",
    "report",
    "publish",
    "paper",
    "demo",
    "cli",
]
INSIDE = {"common", "native", "cli"}  # rooms without public names
DOORS = ["", *(room for room in ROOMS if room not in INSIDE)]


class House:
    """The files of a package and what they import, inside functions too."""

    def __init__(self, sources):
        """Take {module: source}; a package's own file is named as the package."""
        self.trees = {module: ast.parse(source) for module, source in sources.items()}
        self.packages = {
            module for module in sources if any(m.startswith(f"{module}.") for m in sources)
        }
        # What a package shows, and the file that holds it.
        self.shown = {
            package: {
                alias.asname or alias.name: node.module
                for node in ast.walk(self.trees[package])
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(package)
                for alias in node.names
            }
            for package in self.packages
        }

    @classmethod
    def of(cls, folder):
        sources = {}
        for path in folder.rglob("*.py"):
            parts = ["enresnet", *path.relative_to(folder).with_suffix("").parts]
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            sources[name] = path.read_text()
        return cls(sources)

    def imports(self, module):
        """Yield the pairs of a package or file, and the name in it, that a file imports."""
        for node in ast.walk(self.trees[module]):
            if isinstance(node, ast.Import):
                yield from ((alias.name, "") for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{module} has a relative import"
                yield from ((node.module, alias.name) for alias in node.names)

    def files(self, module):
        """Yield the files that a file imports, through the doors of packages."""
        for place, name in self.imports(module):
            if f"{place}.{name}" in self.trees:
                yield f"{place}.{name}"
            elif place in self.trees:
                yield self.shown.get(place, {}).get(name, place)

    def back_edges(self):
        found = []
        for module in self.trees:
            here = room_of(module)
            if module in ("enresnet", "enresnet.__main__"):
                continue  # the front door shows all
            for target in self.files(module):
                there = room_of(target)
                if here not in ROOMS:
                    found.append(f"{module} is in no subpackage")
                elif there == "" and here == "cli":
                    continue  # the command line shows the version
                elif there not in ROOMS[: ROOMS.index(here) + 1]:
                    found.append(f"{module} imports {target}")
        return found

    def cycles(self):
        """Return the files that import themselves, by way of others."""
        graph = {
            module: {target for target in self.files(module) if target not in self.packages}
            for module in self.trees
            if module not in self.packages
        }
        reached = {module: self._reach(graph, module) for module in graph}
        return sorted(module for module in graph if module in reached[module])

    @staticmethod
    def _reach(graph, start):
        seen, left = set(), list(graph[start])
        while left:
            module = left.pop()
            if module not in seen:
                seen.add(module)
                left += graph.get(module, ())
        return seen

    def bypasses(self):
        """Return the imports from inside another room of what its door shows."""
        return [
            f"{module}: {name} from {place}, which enresnet.{room_of(place)} shows"
            for module in self.trees
            for place, name in self.imports(module)
            if room_of(place) not in ("", room_of(module))
            and place != f"enresnet.{room_of(place)}"
            and name in self.shown.get(f"enresnet.{room_of(place)}", {})
        ]


def room_of(module):
    """Return the room of a module; "" for enresnet itself, which shows the public names."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


@pytest.fixture(scope="module")
def house():
    return House.of(PACKAGE)


def test_imports_flow_one_way(house):
    assert len(house.trees) > 100
    assert house.back_edges() == []


def test_no_file_imports_itself_by_way_of_others(house):
    assert house.cycles() == []


def test_rooms_are_entered_by_the_door(house):
    assert house.bypasses() == []


def test_a_command_is_arguments_one_call_and_an_exit_code(house):
    """What takes more than about 60 lines belongs to another room."""
    lengths = {}
    for module, tree in house.trees.items():
        for node in tree.body if room_of(module) == "cli" else ():
            if isinstance(node, ast.FunctionDef) and node.name == "command":
                _, first, *_ = node.body  # after the docstring
                lengths[module] = node.body[-1].end_lineno - first.lineno + 1
    assert len(lengths) > 10
    assert {module: length for module, length in lengths.items() if length > 60} == {}


EMPTY = {
    "enresnet": "",
    "enresnet.models": "from enresnet.models.noise import inject as inject",
    "enresnet.models.noise": "",
    "enresnet.attacks": "from enresnet.attacks.fgsm import FGSM as FGSM",
    "enresnet.attacks.fgsm": "",
    "enresnet.attacks.base": "",
    "enresnet.common": "",
    "enresnet.common.checks": "",
}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("enresnet.models.zoo", "from enresnet.attacks import FGSM"),
        ("enresnet.models.zoo", "def f():\n    import enresnet.attacks.fgsm"),
        ("enresnet.attacks.base", "from enresnet.cli import main"),
        ("enresnet.common.checks", "from enresnet.models import inject"),
        ("enresnet.shed", "from enresnet.models import inject"),
    ],
)
def test_a_back_edge_would_be_found(module, source):
    extra = {"enresnet.cli": "", "enresnet.cli.run": ""}
    assert len(House({**EMPTY, **extra, module: source}).back_edges()) == 1


@pytest.mark.parametrize(
    "source",
    [
        "from enresnet.attacks.base import Attack",
        "def later():\n    from enresnet.attacks.base import Attack",
        "if TYPE_CHECKING:\n    from enresnet.attacks.base import Attack",
        "import enresnet.attacks.base",
    ],
)
def test_a_cycle_would_be_found(source):
    base = "from enresnet.attacks import FGSM"
    house = House({**EMPTY, "enresnet.attacks.fgsm": source, "enresnet.attacks.base": base})
    assert house.cycles() == ["enresnet.attacks.base", "enresnet.attacks.fgsm"]


def test_a_way_round_the_door_would_be_found():
    inside = "from enresnet.models.noise import inject, hidden"
    house = House({**EMPTY, "enresnet.attacks.fgsm": inside})
    assert len(house.bypasses()) == 1


# What a public name tells.


def test_a_word_means_one_thing():
    """``natural`` is an accuracy, not the network trained so; an oracle is a source model."""
    for room, name in public_names():
        thing = getattr(importlib.import_module(f"enresnet.{room}".rstrip(".")), name)
        if not inspect.isclass(thing) and not inspect.isfunction(thing):
            continue
        kinds = {n: str(p.annotation) for n, p in inspect.signature(thing).parameters.items()}
        assert not {"oracle", "oracles"} & set(kinds), f"enresnet.{room}: {name}"
        if room in ("", "evaluation"):
            assert "Accuracy" in kinds.get("natural", "Accuracy"), f"enresnet.{room}: {name}"


def public_names():
    """Yield the names of each ``__all__``, with its room; that of enresnet itself is ""."""
    for room in DOORS:
        module = importlib.import_module(f"enresnet.{room}".rstrip("."))
        yield from ((room, name) for name in module.__all__)


def test_no_public_name_is_that_of_a_file():
    """``enresnet.models.resnet`` is a file; a function of that name would hide it."""
    for room, name in public_names():
        place = PACKAGE / room
        hidden = (place / f"{name}.py").exists() or (place / name).is_dir()
        assert not hidden, f"enresnet.{room}: {name}"


def sections(text):
    """Return the sections of a docstring by name, each with its text."""
    parts = re.split(
        r"^(Args|Attributes|Shape|Returns|Yields|Raises|Example)s?::?$", text, flags=re.M
    )
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def described(section):
    """Return the names that an Args section describes."""
    heads = re.findall(r"^    ([\w*, ]+):", section, flags=re.M)
    return {word for head in heads for word in re.split(r"[, *]+", head)}


def is_protocol(thing):
    """Return whether a class only says what others must have; it has no constructor of its own."""
    return getattr(thing, "_is_protocol", False)


def takes_tensors(function):
    return any("Tensor" in str(kind) for kind in getattr(function, "__annotations__", {}).values())


def missing(thing):
    """Return what the docstring of a public name lacks."""
    found = sections(inspect.getdoc(thing) or "")
    lacks = [] if "Example" in found else ["Example"]
    if inspect.isclass(thing):
        if issubclass(thing, BaseException):
            return []
        call = thing.__dict__.get("forward") or thing.__dict__.get("__call__")
        own = "__init__" in thing.__dict__ and not is_protocol(thing)
        parameters = list(inspect.signature(thing).parameters) if own else []
        told = described(found.get("Args", "")) | described(found.get("Attributes", ""))
        shaped = call is not None and takes_tensors(call)
    else:
        parameters = list(inspect.signature(thing).parameters)
        told = described(found.get("Args", ""))
        shaped = takes_tensors(thing)
        result = str(getattr(thing, "__annotations__", {}).get("return", "None"))
        if result != "None" and not {"Returns", "Yields"} & set(found):
            lacks.append("Returns")
        if "raise " in inspect.getsource(thing) and "Raises" not in found:
            lacks.append("Raises")
    lacks += [f"Args: {name}" for name in parameters if name not in told]
    if shaped and "Shape" not in found:
        lacks.append("Shape")
    return lacks


@pytest.mark.parametrize(("room", "name"), sorted(set(public_names())))
def test_a_public_name_is_documented_where_it_stands(room, name):
    thing = getattr(importlib.import_module(f"enresnet.{room}".rstrip(".")), name)
    if not callable(thing) or not hasattr(thing, "__module__"):
        return  # a constant
    if not inspect.isclass(thing) and not inspect.isfunction(thing):
        return
    assert missing(thing) == []


@pytest.mark.parametrize(("room", "name"), sorted(set(public_names())))
def test_signatures_show_their_options(room, name):
    thing = getattr(importlib.import_module(f"enresnet.{room}".rstrip(".")), name)
    if (not inspect.isclass(thing) and not inspect.isfunction(thing)) or is_protocol(thing):
        return
    for parameter in inspect.signature(thing).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            assert "Unpack" in str(parameter.annotation), f"{name} has **{parameter.name}"
