"""What the style asks for and a program can check."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import commitlog
from commitlog import api

SOURCE = Path(commitlog.__file__).parent
TESTS = Path(__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
EXTRAS = [
    "pyarrow", "pandas", "pyspark", "rich", "click", "lz4", "cramjam", "kazoo", "matplotlib",
    "prometheus_client", "starlette", "uvicorn", "h11",
]  # fmt: skip

# What durability rests on is asked of the file system in files.py only, where tests put a disk that lies.
ONLY_IN_FILES = {
    "fsync", "fdatasync", "replace", "rename", "renames", "ftruncate", "truncate", "posix_fallocate", "link",
    "unlink", "remove", "pwrite", "pwritev", "write", "writev", "sync",
}  # fmt: skip


def name_of(path: Path) -> str:
    """The module's dotted name within the package; a folder's own module has the folder's name."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def file_system_calls(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every use of what only files.py may use."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner, name = node.value.id, node.attr
            if (owner == "os" and name in ONLY_IN_FILES) or owner == "fcntl":
                yield f"{owner}.{name}", node.lineno
        if isinstance(node, ast.Attribute) and node.attr == "flush":
            yield "flush", node.lineno
        if isinstance(node, ast.ImportFrom) and node.module in ("os", "fcntl"):
            for alias in node.names:
                if alias.name in ONLY_IN_FILES or node.module == "fcntl":
                    yield alias.name, node.lineno
        if isinstance(node, ast.Import) and any(alias.name == "fcntl" for alias in node.names):
            yield "fcntl", node.lineno


@pytest.mark.parametrize("path", [path for path in MODULES if path.name != "files.py"], ids=name_of)
def test_durability_is_asked_for_in_files_only(path: Path) -> None:
    # zlib's compressor has a flush of its own; a producer's is Kafka's word for emptying a buffer, a
    # transaction has one, too, and so have stdout and the connection of Spark's workers
    flushing = (
        "compression.py",
        "producer.py",
        "coordinator.py",
        "transaction.py",
        "output.py",
        "hang_up.py",
    )
    harmless = {name: {"flush"} for name in flushing}
    found = [
        f"{path.name}:{line} {call}"
        for call, line in file_system_calls(tree_of(path))
        if call not in harmless.get(path.name, set())
    ]
    assert found == []


def test_the_check_of_durability_sees_what_it_should() -> None:
    program = (
        "import fcntl\nos.fsync(1)\nfrom os import replace\nview.flush()\nfcntl.flock(1, 2)\nos.stat('x')"
    )
    found = {call for call, _ in file_system_calls(ast.parse(program))}
    assert found == {"fcntl", "os.fsync", "replace", "flush", "fcntl.flock"}


def test_no_context_manager_in_python_holds_a_lock() -> None:
    """Ctrl-C can come as its `__exit__` starts, and whoever keeps the exception then keeps the lock held."""
    found = []
    for path in MODULES:
        for function in ast.walk(tree_of(path)):
            if isinstance(function, ast.FunctionDef) and any(
                "contextmanager" in ast.unparse(one) for one in function.decorator_list
            ):
                held = [ast.unparse(one) for node in ast.walk(function) if isinstance(node, ast.With)
                        for one in node.items]  # fmt: skip
                found += [f"{path}: {one}" for one in held if one.endswith(("lock", "mutex"))]
    assert found == []


def test_every_public_name_exists_and_is_documented() -> None:
    assert commitlog.__all__ == sorted([*api.__all__, "connect", "open", "serve"])
    for name in commitlog.__all__:
        public = getattr(commitlog, name)
        assert inspect.getdoc(public), name
        if inspect.isclass(public) and not issubclass(public, Exception):
            for method, value in vars(public).items():
                if inspect.isfunction(value) and not method.startswith("_"):
                    assert inspect.getdoc(value), f"{name}.{method}"


def test_every_public_class_is_reached_from_the_package() -> None:
    public = {name for name in vars(api) if not name.startswith("_") and name[0].isupper()}
    assert public <= set(commitlog.__all__)


def test_importing_the_package_does_not_import_numpy() -> None:
    program = "import sys, commitlog; print('numpy' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_modules_say_what_they_are_for(path: Path) -> None:
    assert ast.get_docstring(tree_of(path))


def test_importing_commitlog_imports_no_extra() -> None:
    program = f"import sys, commitlog.api; print([name for name in {EXTRAS} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def crash_comments() -> Iterator[tuple[str, str]]:
    for path in MODULES:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            found = re.search(r"# (crash: .*)", line)
            if found:
                yield f"{path.name}:{number}", found.group(1).strip()


def test_every_crash_window_is_named_by_a_crash_test() -> None:
    crash_tests = [path.read_text() for path in (TESTS / "crash").glob("*.py")]
    named = re.sub(r"\s+", " ", " ".join(crash_tests))
    missing = [f"{place} {text}" for place, text in crash_comments() if text[:40] not in named]
    assert missing == [], "quote the comment in the docstring of the test that crashes there"


def test_there_are_crash_windows_to_name() -> None:
    assert len(list(crash_comments())) > 5


ROOT = TESTS.parent


def test_workflows_call_make_targets_and_pin_actions_by_major_version() -> None:
    yaml = pytest.importorskip("yaml")
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        jobs = yaml.safe_load(path.read_text())["jobs"].values()
        steps = [step for job in jobs for step in job["steps"]]
        for step in steps:
            if "run" in step:
                name = str(step["run"]).removeprefix("make ")
                assert name in targets or (ROOT / name).is_file(), step
            else:
                assert re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"]), step
        assert any("run" in step for step in steps), path


def test_hooks_before_a_commit_are_commands_of_make_check() -> None:
    yaml = pytest.importorskip("yaml")
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert [repository["repo"] for repository in config["repos"]] == ["local"]
    makefile = (ROOT / "Makefile").read_text().replace("$(BIN)", ".venv/bin")
    for hook in config["repos"][0]["hooks"]:
        assert hook["language"] == "system"
        assert f"\t{hook['entry'].removesuffix(' --force-exclude')}" in makefile, hook["id"]
