"""A hook for mkdocs: adds pages and programs outside docs/ to the site, and adapts the links to them.

README.md is the first page. Links in the sources are those of the repository; here they become the site's.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "examples/spark_pipeline/README.md": "examples/spark_pipeline.md",
    "examples/spark_cluster/README.md": "examples/spark_cluster.md",
}
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")


def in_site(path: str) -> str:
    """Return the place in the site of a file of the repository."""
    return PAGES.get(path) or path.removeprefix("docs/")


def with_links(markdown: str, source: str) -> str:
    """Return a page with its links adapted to the site."""
    here = posixpath.dirname(in_site(source))

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[1]))
        return posixpath.relpath(in_site(target), here or ".")

    return _LINK.sub(moved, markdown)


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages and programs outside docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    for program in sorted((ROOT / "examples").rglob("*.py")):
        name = program.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(program)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Adapt the links of a page to the site."""
    outside = {page: source for source, page in PAGES.items()}
    name = page.file.src_uri
    return with_links(markdown, outside.get(name, f"docs/{name}"))
