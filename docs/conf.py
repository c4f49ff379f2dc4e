"""How Sphinx builds the site: ``sphinx-build -W docs build-folder``. No network is needed."""

from __future__ import annotations

import tomllib
from pathlib import Path

# Imported here, since autodoc imports with TYPE_CHECKING set, which the models of MCP do not survive. And
# from their modules, since without the SDK the package has stubs in their place.
from mcp_tasks_client.hosts.relay.tasks_transport import TasksTransport  # noqa: F401
from mcp_tasks_client.hosts.sdk.extension import TasksExtension  # noqa: F401

_ROOT = Path(__file__).parent.parent
_PROJECT = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = _PROJECT["name"]
author = "The mcp-tasks-client authors"
copyright = f"2026, {author}"
version = release = _PROJECT["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]

myst_enable_extensions = ["colon_fence", "deflist", "html_image"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"{project} {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}
pygments_style = "tango"
pygments_dark_style = "github-dark"

toc_object_entries_show_parents = "hide"  # the methods of a class stand below it

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 60
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

nitpicky = True
# Every link inside the site must lead somewhere, those from signatures included. Names of other packages have
# no page here.
nitpick_ignore_regex = [
    (
        "py:.*",
        r"(annotated_types|anyio|collections|contextlib|datetime|os|pathlib|pydantic|types|typing)\..*",
    ),
    ("py:.*", r"(fastmcp|httpx|httpx2|mcp|mcp_types)\..*"),
]
