"""What the README, the docs and the pages of the examples show runs as it stands, and prints what they say.

Of each page, in its order and in one empty folder: programs (```python), each in a process of its own, with
what it prints (```output) where shown; commands (```sh), and commands with what they print (```console).
What differs from run to run has an ellipsis on the page.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

import commitlog
from commitlog.spark import find_java

ROOT = Path(__file__).parents[2]
SERVERS = {"web_app"}  # tests/aio/test_web_app.py runs it
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.stem not in SERVERS)
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
# Commands that are not run here, and why.
NOT_RUN = {
    r"pip install .*": "changes the environment; test_wheel.py installs the wheel into one of its own",
    r"make (PYTHON=\S+ )?(test|soak|check|test-native|test-spark-versions)": "runs these tests, among others",
    r"make native": "changes the environment; make test-native does it first",
    r"make [A-Z_]+=\S+ soak": "a soak of its own",
    r"make fuzz": "runs for half an hour; test_fuzz.py runs its short form",
    r"make demo": "three of the examples, each of which is run for its own page",
    r"make docs": "test_site.py builds the site",
    r"python -m build": "test_wheel.py builds the wheel",
    r"python tools/configuration\.py": "test_site.py compares what it would write",
    r"(make (FORM=\S+ )?(bench|bench-kafka|growth)|python benchmarks/\w+\.py).*": "measures for minutes",
    r"python -m commitlog": "tests/cli runs the command so",
    r"commitlog ui .*": "serves until it is ended; tests/ui runs it",
    r"python tools/screenshots\.py": "makes the pictures of docs/ui.md anew",
    r"(python examples/web_app\.py|curl) .*": "serves until it is ended; tests/aio/test_web_app.py runs it",
    r"python examples/spark_pipeline/run\.py.*": "tests/spark/test_pipeline.py runs it, and kills it",
    r"([A-Z_]+=\S+ )*spark-submit .*": "needs a cluster; tests/spark/test_ways.py has one",
    r"\(cd library .*|venv-pack .*|mkdir -p environment .*": "makes what tests/spark/environments.py makes",
    r"\S+start-connect-server\.sh .*|SPARK_REMOTE=\S+ python .*": "tests/spark/test_connect.py has both",
}
_BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_IN_A_SENTENCE = re.compile(r"`((?:pip|make|python) [^`]+)`")
_COMMAND = re.compile(r"^(\$ |(pip|make|python|commitlog|cd|export) )", re.MULTILINE)


class Step(NamedTuple):
    """Something to run, and what it prints; None where the page does not say."""

    kind: str
    text: str
    output: str | None = None


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[tuple[str, str]]:
    return [(kind.strip(), text) for kind, text in _BLOCK.findall(page.read_text())]


def skipped(command: str) -> bool:
    return any(re.fullmatch(pattern, command) for pattern in NOT_RUN)


def commands(text: str) -> list[str]:
    """The lines of a block of commands, without comments; those that end in a backslash go on."""
    plain = (re.sub(r"(^|\s+)#.*", "", line) for line in text.replace("\\\n", " ").splitlines())
    return [line for line in plain if line.strip()]


def steps(page: Path) -> Iterator[Step]:
    """What there is to run on a page, in order."""
    found = blocks(page)
    for number, (kind, text) in enumerate(found):
        if kind == "python" and not text.startswith("--8<--"):  # that is an example, shown as it is
            follows = found[number + 1] if number + 1 < len(found) else ("", "")
            yield Step("python", text, follows[1] if follows[0] == "output" else None)
        elif kind == "sh":
            lines = [line for line in commands(text) if not skipped(line)]
            if lines:
                yield Step("sh", "\n".join(lines))
        elif kind == "console":
            for shown in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, _, output = shown.partition("\n")
                if not skipped(command):
                    yield Step("sh", command, output)


def run(folder: Path, step: Step) -> subprocess.CompletedProcess[str]:
    """Run a step in a folder, with warnings as errors."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    places = {"PATH": path, "PYTHONPATH": str(Path(commitlog.__file__).parents[1]), "TMPDIR": str(folder)}
    if step.kind == "python":
        program = folder / "program.py"  # a file, so that processes that it spawns find its functions
        program.write_text(step.text)
        command, strict = [sys.executable, "-W", "error", str(program)], {}
    else:
        command, strict = ["bash", "-euo", "pipefail", "-c", step.text], {"PYTHONWARNINGS": "error"}
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "JAVA_HOME": find_java() or "", **places, **strict},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def is_as_shown(output: str, shown: str) -> bool:
    """Compare, whatever stands in the place of an ellipsis."""
    pattern = ".*?".join(re.escape(part) for part in shown.strip().split("…"))
    return re.fullmatch(pattern, output.strip(), re.DOTALL) is not None


STEPS = {name_of(page): list(steps(page)) for page in PAGES}


@pytest.mark.parametrize("page", [name for name, found in STEPS.items() if found])
def test_a_page_does_what_it_shows(page: str, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for step in STEPS[page]:
        done = run(tmp_path, step)
        assert done.returncode == 0, f"{step.text}\n{done.stderr}"
        if step.output is not None:
            assert is_as_shown(done.stdout, step.output), f"{step.text}\nprinted\n{done.stdout}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_command_hides_in_a_block_that_is_not_run(page: Path) -> None:
    for kind, text in blocks(page):
        if kind not in ("python", "sh", "console"):
            assert not _COMMAND.search(text), text


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_shown_with_its_output(example: Path) -> None:
    page = STEPS[f"docs/examples/{example.stem}.md"]
    assert [step for step in page if step.text == f"python examples/{example.name}" and step.output]


def shown(page: Path) -> Iterator[str]:
    """Every command that a page shows, also within its sentences."""
    for kind, text in blocks(page):
        if kind == "sh":
            yield from commands(text)
        elif kind == "console":
            yield from re.findall(r"^\$ (.*)", text, re.MULTILINE)
    for command in _IN_A_SENTENCE.findall(_BLOCK.sub("", page.read_text())):
        yield " ".join(command.split())


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_is_run_somewhere_or_there_is_a_reason(page: Path) -> None:
    run_somewhere = {step.text for steps in STEPS.values() for step in steps if step.kind == "sh"}
    run_lines = {line for text in run_somewhere for line in text.splitlines()}
    assert {command for command in shown(page) if not skipped(command)} <= run_lines


def test_each_reason_not_to_run_something_is_needed() -> None:
    everything = [command for page in PAGES for command in shown(page)]
    for pattern in NOT_RUN:
        assert any(re.fullmatch(pattern, command) for command in everything), pattern


def test_what_a_command_names_is_there() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        for command in shown(page):
            words = command.split()
            if words[0] == "make":
                assert words[-1] in targets, f"{name_of(page)}: {command}"
            elif words[0] == "python":
                found = find_spec(words[2]) if words[1] == "-m" else (ROOT / words[1]).is_file()
                assert found, f"{name_of(page)}: {command}"


def test_there_are_examples_and_programs() -> None:
    assert EXAMPLES
    assert STEPS["README.md"]


def test_the_comparison_of_output_sees_what_it_should() -> None:
    assert is_as_shown("a 12 b\nc\n", "a … b\nc")
    assert not is_as_shown("a 12 b\nd\n", "a … b\nc")
    assert not is_as_shown("a 12 b\nc\nd\n", "a … b\nc")
