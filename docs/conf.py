"""How the documentation site is built; ``make docs`` does it.

Nothing is fetched, neither here nor by the pages: mathematics is MathML, its font lies beside them.
"""

import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "EnResNet"
author = "The EnResNet contributors"
copyright = "the EnResNet contributors"
version = release = version_of("enresnet")
language = "en"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    # Our own, in _ext.
    "mathml",
    "repository",
    "public_names",
    "generated",
]
exclude_patterns = ["_ext", "_static", "images"]

# Markdown. The pages are also read as plain Markdown, so they use little of MyST.
myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = ["math"]  # ```math, as forges write it
myst_heading_anchors = 3
myst_url_schemes = ["http", "https"]
suppress_warnings = ["myst.header"]  # results/cifar10 opens as a page of its own

# The reference.
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
add_module_names = False
napoleon_numpy_docstring = False
napoleon_custom_sections = ["Shape"]
napoleon_use_rtype = False
toc_object_entries_show_parents = "hide"

# Strict: what is linked must be there. The types of other packages are not ours to resolve.
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(abc|collections|contextlib|os|pathlib|typing|dict\[str|tuple\[float)(\..*)?"),
    (
        r"py:.*",
        r"(torch|Tensor|numpy|np|nn|PIL|matplotlib|lightning_fabric|huggingface_hub)(\..*)?",
    ),
    (r"py:meth", r"save_pretrained|push_to_hub"),  # of huggingface_hub
    (r"py:class", r"CheckpointName|Figure4|Interval|Scored|Source"),  # short names of types
    (r"py:exc", r"InterruptedTrainingError|LostProcessError"),
]

html_theme = "furo"
html_title = "EnResNet"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"
highlight_language = "text"
html_theme_options = {
    "navigation_with_keys": True,
    "light_css_variables": {
        "color-brand-primary": "#1f5fa8",
        "color-brand-content": "#1f5fa8",
    },
    "dark_css_variables": {
        "color-brand-primary": "#7db4f0",
        "color-brand-content": "#7db4f0",
    },
}
