"""The documentation as a site: built without a warning, complete, and asking nothing of other hosts."""

from __future__ import annotations

import dataclasses
import html
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import commitlog
import commitlog.aio
import commitlog.replication
import commitlog.spark
import commitlog.testing

pytest.importorskip("mkdocs")
pytest.importorskip("material")
pytest.importorskip("mkdocstrings")

ROOT = Path(__file__).parents[2]


def tool(name: str) -> ModuleType:
    """A module of tools/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)],
        cwd=source,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, without a broken link, a broken anchor or a page that nobody finds."""
    target = tmp_path_factory.mktemp("site")
    done = build(ROOT, target)
    assert done.returncode == 0, done.stderr
    return target


def test_the_site_asks_nothing_of_other_hosts(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text()
        asked = re.findall(r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=\"?(https?:)?//", text)
        assert not asked, page
        assert 'class="mermaid"' not in text  # the theme would fetch a library to draw it
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(\s*[\"']?(https?:)?//|@import", style.read_text()), style


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    pages = "".join(page.read_text() for page in (site / "api").glob("*.html"))
    pages += (site / "configuration.html").read_text()
    found = set(re.findall(r'id="([\w.]+)"', pages))
    last = {name.rpartition(".")[2] for name in found} | set(re.findall(r"<h2[^>]*>(\w+Config)<", pages))
    for module in (commitlog, commitlog.aio, commitlog.replication, commitlog.spark, commitlog.testing):
        missing = set(module.__all__) - last - {"CONTROLLER"}
        assert not missing, module.__name__


def test_the_search_finds_asyncio(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = {
        one["location"].partition("#")[0] for one in index["docs"] if "asyncio" in one["title"] + one["text"]
    }
    assert {"howto/asyncio.html", "api/aio.html", "examples/web_app.html"} <= found


def test_the_methods_of_a_partition_are_in_the_reference(site: Path) -> None:
    """They are inherited from the classes that it is made of."""
    page = (site / "api" / "partitions.html").read_text()
    for method in ("append", "append_arrow", "to_reader", "trim_before", "compact", "repair", "verify"):
        assert f'id="commitlog.Partition.{method}"' in page


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_the_page_of_an_example_shows_its_program(site: Path, example: Path) -> None:
    page = html.unescape(re.sub(r"<[^>]+>", "", (site / "examples" / f"{example.stem}.html").read_text()))
    assert example.read_text().strip() in page
    assert (site / "examples" / example.name).read_text() == example.read_text()


def copy_of_docs(folder: Path) -> Path:
    for name in ("docs", "examples", "tools"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (*ROOT.glob("*.md"), ROOT / "mkdocs.yml"):
        shutil.copy(path, folder)
    (folder / "src").symlink_to(ROOT / "src")
    return folder


def test_a_broken_link_or_anchor_is_an_error(tmp_path: Path) -> None:
    """Also one from the README, and one to a file outside docs/."""
    copy = copy_of_docs(tmp_path / "copy")
    with (copy / "README.md").open("a") as readme:
        readme.write(
            "[a](docs/no-such-page.md) [b](docs/clients.md#no-such-anchor) [c](examples/no_such.py)\n"
        )
    done = build(copy, tmp_path / "site")
    assert done.returncode != 0
    for problem in ("no-such-page.md", "no-such-anchor", "no_such.py"):
        assert problem in done.stderr


# --- links, as they are in the repository


@pytest.mark.parametrize(
    ("source", "link", "expected"),
    [
        ("README.md", "docs/clients.md#groups", "clients.md#groups"),
        ("README.md", "examples/delivery.py", "examples/delivery.py"),
        ("docs/clients.md", "../examples/delivery.py", "examples/delivery.py"),
        ("docs/examples/audit.md", "../../examples/audit.py", "audit.py"),
        ("docs/spark.md", "../examples/spark_pipeline/README.md", "examples/spark_pipeline.md"),
        ("docs/howto/spark.md", "../spark.md#writing", "../spark.md#writing"),
        ("docs/spark.md", "#options", "#options"),
        ("CONTRIBUTING.md", "docs/design.md", "design.md"),
        ("README.md", "https://example.org/x.md", "https://example.org/x.md"),
    ],
)
def test_a_link_of_the_repository_is_one_of_the_site(source: str, link: str, expected: str) -> None:
    assert tool("site").with_links(f"see [it]({link}).", source) == f"see [it]({expected})."


def test_links_lead_to_files_of_the_repository() -> None:
    """Whoever reads the pages where they lie, without a site, finds them as well."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    for page in pages:
        prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for link in re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", prose):
            assert (page.parent / link).exists(), f"{page}: {link}"


# --- the configuration page


def test_the_configuration_page_is_that_of_the_source() -> None:
    made = tool("configuration")
    assert made.page() == made.PAGE.read_text(), "run: python tools/configuration.py"


def test_every_setting_says_what_it_means() -> None:
    made = tool("configuration")
    for config, _ in made.CONFIGS:
        assert set(made.meanings(config)) == {field.name for field in dataclasses.fields(config)}
    named = {field.name for config, _ in made.CONFIGS for field in dataclasses.fields(config)}
    assert set(made.KAFKAS_NAMES) <= named


def test_every_class_of_settings_is_on_the_page() -> None:
    made = tool("configuration")
    shown = {config.__name__ for config, _ in made.CONFIGS}
    public = {*commitlog.__all__, *commitlog.replication.__all__}
    assert shown == {name for name in public if name.endswith("Config")} - {"TlsConfig"}
