"""One node of Kafka on loopback: its jars come by Maven, its data is in a folder that the caller removes."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

KAFKA = "4.3.1"
SCALA = "2.13"
BROKER_JARS = (
    f"org.apache.kafka:kafka_{SCALA}:{KAFKA}",
    f"org.apache.kafka:kafka-tools:{KAFKA}",
    "org.slf4j:slf4j-simple:1.7.36",
)
SPARK_VERSIONS = ("4.3.0", "4.2.0", "4.1.0", "4.0.0")  # of its connector and of the token provider it needs
CLIENT_JARS = ("org.apache.kafka:kafka-clients:3.9.2", "org.apache.commons:commons-pool2:2.12.0")
# The heap and the collector of Kafka's own start script.
JAVA_OPTIONS = (
    "-server", "-Xms1G", "-Xmx1G", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true",
)  # fmt: skip
START_SECONDS = 120
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>benchmark</groupId><artifactId>benchmark</artifactId><version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
DEPENDENCY = (
    "<dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version>{3}</dependency>"
)
ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


class NotMeasuredError(Exception):
    """Something that a measurement needs is missing; the text says what."""


# --- jars ----------------------------------------------------------------------------------------


def default_cache() -> Path:
    """Return the folder that keeps the jars from run to run."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "commitlog-benchmarks"


def broker_jars(cache: Path) -> Path:
    """Return the folder with the jars of the broker, fetching them if they are not there."""
    return fetched(cache / f"kafka-{KAFKA}", BROKER_JARS, alone=False)


def connector_jars(cache: Path, spark: str) -> list[Path]:
    """Return the jars that a version of Spark needs for Kafka: of each the newest that Maven finds."""
    connector = newest(cache, "spark-sql-kafka-0-10", spark)
    provider = newest(cache, "spark-token-provider-kafka-0-10", spark)
    clients = fetched(cache / "spark-kafka-clients", CLIENT_JARS, alone=True)
    return sorted(jar for folder in (connector, provider, clients) for jar in folder.glob("*.jar"))


def newest(cache: Path, artefact: str, limit: str) -> Path:
    """Fetch the newest version of a part of Spark that is not newer than `limit`; some are missing."""
    problem = NotMeasuredError(f"there is no {artefact} for Spark {limit}")
    for version in SPARK_VERSIONS:
        if numbers(version) > numbers(limit):
            continue
        name = f"org.apache.spark:{artefact}_{SCALA}:{version}"
        try:
            return fetched(cache / f"{artefact}-{version}", [name], alone=True)
        except NotMeasuredError as missing:
            problem = missing
    raise problem


def numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")[:3] if part.isdigit()]


def fetched(folder: Path, names: Sequence[str], *, alone: bool) -> Path:
    """Fetch artefacts by Maven into `folder`, unless it exists; `alone` leaves out what they depend on.

    The folder appears when it is complete, so an interrupted run leaves none that looks fetched.
    """
    if folder.is_dir():
        return folder
    program = shutil.which("mvn")
    if program is None:
        raise NotMeasuredError("Maven (mvn) is not installed")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fetching-", dir=folder.parent) as place:
        work = Path(place)
        parts = [DEPENDENCY.format(*name.split(":"), ALONE if alone else "") for name in names]
        (work / "pom.xml").write_text(POM.format(dependencies="".join(parts)))
        command = [
            program, "--batch-mode", "--quiet", "dependency:copy-dependencies", "-DincludeScope=runtime",
            f"-DoutputDirectory={work / 'jars'}",
        ]  # fmt: skip
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
        if done.returncode or not (work / "jars").is_dir():
            raise NotMeasuredError(f"Maven did not find {names[0]}: {reason(done.stdout + done.stderr)}")
        (work / "jars").rename(folder)
    return folder


def reason(output: str) -> str:
    """Return the part of Maven's output that says what is wrong, without the address it asked."""
    for line in output.splitlines():
        if "Could not" in line:
            return "Could not" + line.rpartition("Could not")[2].partition(" in ")[0].partition(" (http")[0]
    return "its output says nothing about it" if not output.strip() else output.strip().splitlines()[-1][:200]


# --- the node ------------------------------------------------------------------------------------


class Node:
    """A broker and controller in one process, running."""

    def __init__(self, process: subprocess.Popen[bytes], address: str, folder: Path) -> None:
        self.process = process
        self.address = address
        self.output = folder / "output.txt"
        self._data = folder / "data"

    def log_files(self, topic: str) -> list[Path]:
        """Return the log files of all partitions of a topic."""
        folders = [one for one in self._data.iterdir() if one.name.rpartition("-")[0] == topic]
        return sorted(file for folder in folders for file in folder.glob("*.log"))

    def create_topic(self, name: str, partitions: int = 1, settings: Mapping[str, str] | None = None) -> str:
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient(self.client({}))
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(settings or {}))
        for created in admin.create_topics([topic]).values():
            created.result(60)
        return name

    def alter(self, kind: str, name: str, settings: Mapping[str, str]) -> None:
        """Change settings of a topic or of a broker while it runs."""
        from confluent_kafka.admin import (
            AdminClient,
            AlterConfigOpType,
            ConfigEntry,
            ConfigResource,
            ResourceType,
        )

        entries = [
            ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
            for setting, value in settings.items()
        ]
        resource = ConfigResource(ResourceType[kind.upper()], name, incremental_configs=entries)
        admin = AdminClient(self.client({}))
        for changed in admin.incremental_alter_configs([resource]).values():
            changed.result(60)

    def client(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a client of this node."""
        return {"bootstrap.servers": self.address, "log_level": 3, **settings}


@contextmanager
def running(jars: Path, folder: Path) -> Iterator[Node]:
    """Start a node with its data in `folder`, and end it whatever happens."""
    java = find_java()
    folder.mkdir(parents=True)
    address, controller = (f"127.0.0.1:{port}" for port in free_ports(2))
    properties = folder / "server.properties"
    properties.write_text(server_properties(address, controller, folder / "data"))
    classes = ["-cp", f"{jars}/*"]
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    formatting = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", str(properties)]
    done = subprocess.run([java, *classes, *formatting], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotMeasuredError(f"Kafka did not format its folder: {done.stderr.strip()[-200:]}")
    command = [java, *JAVA_OPTIONS, *classes, "kafka.Kafka", str(properties)]
    if shutil.which("setpriv"):  # so that it ends even if this process is killed
        command = ["setpriv", "--pdeathsig", "KILL", *command]
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        wait_until_listening(process, address, folder / "output.txt")
        yield Node(process, address, folder)
    finally:
        end(process)


def find_java() -> str:
    """Return the program that runs Kafka."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else None)
    if found is None:
        raise NotMeasuredError("Java is not installed")
    return found


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that are free now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def server_properties(address: str, controller: str, data: Path) -> str:
    """Return the settings of a single node; all others are Kafka's defaults."""
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{controller}",
        "listeners": f"PLAINTEXT://{address},CONTROLLER://{controller}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(data),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        "log.cleaner.backoff.ms": "100",  # the row of compaction waits for the cleaner
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def wait_until_listening(process: subprocess.Popen[bytes], address: str, output: Path) -> None:
    host, _, port = address.partition(":")
    give_up = monotonic() + START_SECONDS
    while monotonic() < give_up:
        if process.poll() is not None:
            raise NotMeasuredError(f"Kafka ended while it started: {output.read_text()[-300:].strip()}")
        with suppress(OSError), closing(socket.create_connection((host, int(port)), 1)):
            return
        sleep(0.1)
    raise NotMeasuredError(f"Kafka did not listen within {START_SECONDS} s")


def end(process: subprocess.Popen[bytes]) -> None:
    """Let a process end, and kill it if it does not; its data is thrown away in any case."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        pass
    finally:  # after another Ctrl-C, too
        process.kill()
        process.wait()
