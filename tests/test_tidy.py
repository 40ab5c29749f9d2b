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

SOURCE = Path(commitlog.__file__).parent
TESTS = Path(__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
FOLDERS = {
    ".".join(("commitlog", *path.parent.relative_to(SOURCE).parts))
    for path in SOURCE.glob("*/**/__init__.py")
}

# Imports point down this list: a module may import only modules that stand before it.
LAYERS = [
    "errors", "ids", "record", "config", "background", "steps",
    "batches", "batches.codec", "batches.columns", "batches.format", "batches.reserved", "batches.ones",
    "batches.checking", "batches.encode", "batches.batch", "batches.arrow", "batches.joining",
    "batches.merge",
    "files", "lock",
    "batches.staged",
    "segments", "segments.index", "segments.index_builder", "segments.handles", "segments.segment",
    "segments.segment_writer", "segments.trash", "segments.swap", "segments.extents",
    "upkeep", "upkeep.repair", "upkeep.rewrite", "upkeep.retention", "upkeep.keymap", "upkeep.pace",
    "upkeep.compaction",
    "partitions", "partitions.epochs", "partitions.state", "partitions.recovery", "partitions.tally",
    "partitions.latest", "partitions.epoch_checkpoint", "partitions.replica_slice", "partitions.reader",
    "partitions.waiting", "partitions.producers", "partitions.received", "partitions.active",
    "partitions.writer", "partitions.adopting", "partitions.compacting", "partitions.shortening",
    "partitions.replicated", "partitions.partition", "partitions.read_only", "partitions.shared",
    "cleaner", "housekeeping",
    "topics", "topics.partitioner", "topics.topic", "topics.catalog", "topics.topic_set",
    "publishing", "publishing.staging", "publishing.publications", "publishing.publisher",
    "clients.groups", "clients.groups.assignors", "clients.groups.heartbeats", "clients.groups.state",
    "clients.groups.directory", "clients.groups.offsets", "clients.groups.member",
    "clients", "clients.meter", "clients.quota", "clients.delivery", "clients.lane", "clients.producer",
    "clients.fetching", "clients.positions",
    "clients.groups.session", "clients.groups.admin",
    "metrics",
    "clients.consumer",
    "log", "prometheus",
    "replication.cluster", "replication.controllers.control", "replication.messages", "replication.transport",
    "replication.transports.local", "replication.rules", "replication.controller",
    "replication.controllers.simulated", "replication.controllers.stored", "replication.controllers.telling",
    "replication.controllers.static", "replication.refusals", "replication.controllers.served",
    "replication.controllers.remote_controller", "replication.controllers.zk_layout",
    "replication.controllers.zk_requests", "replication.controllers.zk_elected",
    "replication.controllers.zk_member", "replication.controllers.zookeeper",
    "replication.replicas.replica_log", "replication.transports.fields", "replication.transports.wire",
    "replication.transports.rights", "replication.transports.budgets", "replication.transports.complaints",
    "replication.transports.handshake", "replication.transports.tls", "replication.transports.streams",
    "replication.transports.timer", "replication.transports.connection", "replication.transports.opening",
    "replication.transports.tcp", "replication.clients.intake", "replication.clients.answering",
    "replication.clients.router", "replication.clients.fetched", "replication.clients.remote_partition",
    "replication.clients.remote", "replication.config", "replication.replicas.effects",
    "replication.replicas.progress", "replication.replicas.leader", "replication.replicas.follower",
    "replication.replicas.replica", "replication.replicas.complaints", "replication.replicas.throttle",
    "replication.replicas.held",
    "replication.replicas.acks", "replication.replicas.serving", "replication.replicas.fetching",
    "replication.replicas.core", "replication.set_aside", "replication.hosting", "replication.node_topic",
    "replication.node",
    "replication.clients", "replication.controllers", "replication.replicas", "replication.transports",
    "replication",
    "testing", "__init__",
    "spark.parsing", "spark.opening", "spark.options", "spark.planning", "spark.admission", "spark.columns",
    "spark.rows", "spark.worker", "spark.source", "spark.stream", "spark.mapping", "spark.write_options",
    "spark.task", "spark.from_rows", "spark.sink", "spark.progress", "spark.dividing", "spark.jobs",
    "spark.java", "spark",
    "cli.options", "cli.output", "cli.progress", "cli.opening", "cli.json_records", "cli.lines",
    "cli.feeding", "cli.produce", "cli.sinks", "cli.file_formats", "cli.checking", "cli.completion",
    "cli.dump", "cli.figures", "cli.topics", "cli.formats", "cli.consuming", "cli.consume", "cli.exporting",
    "cli.groups", "cli.load", "cli.bench", "cli.stats", "cli.upkeep", "cli.watching", "cli.top", "cli.rows",
    "cli.csv_source", "cli.sources", "cli.importing",
    "ui", "ui.bars", "ui.contents", "ui.guard", "ui.bounded_http", "ui.rates", "ui.asking", "ui.changes_api",
    "ui.groups_api", "ui.scanning", "ui.records_api", "ui.tail_api", "ui.topics_api", "ui.app", "ui.server",
    "cli.ui", "cli.app", "cli",
    "__main__",
]  # fmt: skip
# pyarrow is an extra, so who hands out Arrow data imports arrow.py when asked to: the only way up.
IMPORTED_WHEN_ASKED = "batches.arrow"
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


def test_the_layers_name_every_module() -> None:
    assert sorted(name_of(path) for path in MODULES) == sorted(LAYERS)


def imports(tree: ast.AST, inside_function: bool = False) -> Iterator[tuple[str, bool, int]]:
    """Every commitlog module that is imported: its name, whether within a function, and the line."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue  # never executed, so it cannot make a circle
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            if node.module == "commitlog" or node.module in FOLDERS:
                folder = node.module.removeprefix("commitlog").lstrip(".")
                names = [f"{folder}.{alias.name}".lstrip(".") for alias in node.names]
                yield from ((name, inside_function, node.lineno) for name in names)
            elif node.module and node.module.startswith("commitlog."):
                yield node.module.removeprefix("commitlog."), inside_function, node.lineno
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("commitlog."):
                    yield alias.name.removeprefix("commitlog."), inside_function, node.lineno
        else:
            function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports(node, inside_function or function)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_down(path: Path) -> None:
    below = LAYERS[: LAYERS.index(name_of(path))]
    for imported, inside_function, line in imports(tree_of(path)):
        if imported == IMPORTED_WHEN_ASKED and inside_function:
            continue
        assert imported in below, f"{path.name}:{line} imports {imported}, which is not below it"


def test_the_check_of_imports_sees_what_it_should() -> None:
    program = """
from commitlog import files
if TYPE_CHECKING:
    from commitlog.log import CommitLog
def f():
    from commitlog.batches import arrow
    import commitlog.segments.index
class C:
    def g(self):
        from commitlog.topics.topic import Topic
"""
    found = [(name, inside) for name, inside, _ in imports(ast.parse(program))]
    assert found == [
        ("files", False), ("batches.arrow", True), ("segments.index", True), ("topics.topic", True)
    ]  # fmt: skip


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
    # zlib's compressor has a flush of its own; a producer's is Kafka's word for emptying a buffer, and stdout
    # has one
    harmless = {"codec.py": {"flush"}, "producer.py": {"flush"}, "output.py": {"flush"}}
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
    assert commitlog.__all__ == sorted(commitlog.__all__)
    for name in commitlog.__all__:
        public = getattr(commitlog, name)
        assert inspect.getdoc(public), name
        if inspect.isclass(public) and not issubclass(public, Exception):
            for method, value in vars(public).items():
                if inspect.isfunction(value) and not method.startswith("_"):
                    assert inspect.getdoc(value), f"{name}.{method}"


def test_every_public_class_is_reached_from_the_package() -> None:
    public = {name for name in vars(commitlog) if not name.startswith("_") and name[0].isupper()}
    assert public - {"Literal"} <= set(commitlog.__all__)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_modules_say_what_they_are_for(path: Path) -> None:
    assert ast.get_docstring(tree_of(path))


def test_importing_commitlog_imports_no_extra() -> None:
    program = f"import sys, commitlog; print([name for name in {EXTRAS} if name in sys.modules])"
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
