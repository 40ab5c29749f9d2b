"""A hook of mkdocs: pages and programs outside docs/ become part of the site, and links to them follow.

README.md is the first page. What is linked by its place in the repository is found by its place in the site.
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
}
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")


def in_site(path: str) -> str:
    """Return where a file of the repository is in the site."""
    return PAGES.get(path) or path.removeprefix("docs/")


def with_links(markdown: str, source: str) -> str:
    """Rewrite the links of a page of the repository for its place in the site."""
    here = posixpath.dirname(in_site(source))

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[1]))
        return posixpath.relpath(in_site(target), here or ".")

    return _LINK.sub(moved, markdown)


def on_files(files: Files, *, config: Any) -> Files:
    """Add what stands outside docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    for program in sorted((ROOT / "examples").rglob("*.py")):
        name = program.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(program)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Make the links of a page those of the site."""
    outside = {page: source for source, page in PAGES.items()}
    name = page.file.src_uri
    return with_links(markdown, outside.get(name, f"docs/{name}"))
