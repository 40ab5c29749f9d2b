"""Three nodes, a controller and two clients on hosts of their own, while a nemesis does its worst.

run() starts this file as a program in namespaces of its own. It leaves in a directory what the clients saw
(*.history), what the nemesis did (nemesis.log), what the processes said (*.err) and the closed files of each
replica (replica-*). Its processes are in one PID namespace: none is left when it ends, however it ends.
"""

from __future__ import annotations

import errno
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from jepsen.network import Host, Network
from jepsen.processes import PORT

PROGRAMS = str(Path(__file__).with_name("processes.py"))
NODES = ("n1", "n2", "n3")
CLIENTS = ("a", "b")
PARTITIONS = 2
DISK_BYTES = 192 << 20
TOPIC_CONFIG = {"min_insync_replicas": 2, "segment_bytes": 32 << 10}
PATIENCE_S = 90  # for a cluster without faults to be whole again


# --- entering namespaces


def entering() -> list[str]:
    """Return the command that runs another one in namespaces, as root or as a user who plays root."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *user, "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def missing() -> str | None:
    """Why this cannot run here; None if it can."""
    for program in ("unshare", "nsenter", "ip"):
        if shutil.which(program) is None:
            return f"there is no {program}; on Debian: apt-get install iproute2 util-linux"
    probe = (
        "ip link add name probe type veth && ip rule add from 10.99.1.2 blackhole && "
        "echo 1 > /proc/sys/net/ipv4/ip_forward && mount -t tmpfs none /mnt"
    )
    done = subprocess.run([*entering(), "sh", "-c", probe], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"this machine allows no namespaces: {done.stderr.strip()}"


def run(seconds: float, seed: int, directory: Path, limit_s: float) -> Counter[str]:
    """Run the rig in namespaces of its own; returns what the nemesis did, by kind."""
    command = [*entering(), sys.executable, __file__, str(seconds), str(seed), str(directory)]
    paths = [str(Path(__file__).parents[1]), *(path for path in sys.path if path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    with (directory / "rig.err").open("w") as errors:
        rig = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=errors, stderr=errors, env=environment)
        try:
            rig.wait(limit_s)
        finally:
            rig.kill()  # and with it all that it started
            rig.communicate()
    said = (directory / "rig.err").read_text()
    assert rig.returncode == 0, f"the rig ended with {rig.returncode}\n{said}"
    return Counter(json.loads((directory / "done.json").read_text()))


# --- inside


class Process:
    """A process on a host, which can be started again."""

    def __init__(self, host: Host, directory: Path, name: str, *arguments: object) -> None:
        self.name = name
        self._command = [*host.inside(sys.executable, PROGRAMS), *map(str, arguments)]
        self._errors = (directory / f"{name}.err").open("a")
        self._process: subprocess.Popen[str] | None = None
        self.is_ready = threading.Event()
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()

    def start(self) -> None:
        self.is_ready, self._answers = threading.Event(), queue.SimpleQueue()
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True).start()

    def _listen(self, said: IO[str]) -> None:
        is_ready, answers = self.is_ready, self._answers
        if said.readline() == "ready\n":
            is_ready.set()
        for line in said:
            answers.put(line)

    def ask(self, question: str) -> str:
        """Send a line, and return the line that it answers."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(question + "\n")
        self._process.stdin.flush()
        return self._answers.get(timeout=PATIENCE_S)

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()
        self._process = None

    def end(self, limit_s: float) -> int:
        """Close its input and wait for a good end; it is killed if there is none in time."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGABRT)  # its stacks go to its file of errors
            return self._process.wait()


Fault = Iterator[None]  # up to its yield it begins, then it lasts, then it ends


class Rig:
    """The cluster, and what can be done to it. Every fault is undone by leaving it."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.chance = random.Random(seed)
        self.network = Network(*NODES, "ctl", *CLIENTS)
        self.done: Counter[str] = Counter()
        self._kinds = self.chance.sample([fault for fault, _ in self.FAULTS], len(self.FAULTS))
        self.faulty: set[str] = set()  # processes that may be down or still
        self._log = (directory / "nemesis.log").open("w")
        self._began = time.monotonic()
        controller = self.network["ctl"].address
        self.processes = {
            "ctl": Process(
                self.network["ctl"], directory, "ctl", "controller", controller, self.disk("ctl"),
            )
        }  # fmt: skip
        for number, name in enumerate(NODES, 1):
            host = self.network[name]
            path = self.disk(name) / "log"
            self.processes[name] = Process(
                host, directory, name, "node", number, host.address, path, controller
            )
        nodes = ",".join(f"{self.network[name].address}:{PORT}" for name in NODES)
        for name in CLIENTS:
            self.processes[name] = Process(
                self.network[name], directory, name, "client", name, nodes, PARTITIONS,
                directory / f"{name}.history", seed,
            )  # fmt: skip
        self.nodes = nodes

    def disk(self, name: str) -> Path:
        """A file system of its own for a host, made when it is first asked for."""
        path = self.directory / f"disk-{name}"
        if not path.exists():
            path.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", path], check=True)
        return path

    def note(self, what: str) -> None:
        self._log.write(f"{time.monotonic() - self._began:8.2f} {what}\n")
        self._log.flush()

    # --- faults

    def cut(self) -> Fault:
        """Between two hosts; sometimes one way only."""
        one, other = self.chance.sample([*NODES, "ctl"], 2)
        ways = [(one, other)] if self.chance.random() < 0.4 else [(one, other), (other, one)]
        yield from self._cut(ways)

    def isolate(self) -> Fault:
        """Cut a node off from all others, or let it only send, or only hear."""
        victim = self.chance.choice(NODES)
        others = [name for name in self.network.hosts if name != victim]
        deaf, dumb = self.chance.choice([(True, True), (True, False), (False, True)])
        ways = [(other, victim) for other in others if deaf] + [(victim, other) for other in others if dumb]
        yield from self._cut(ways)

    def split(self) -> Fault:
        """A node is cut off from the other nodes, but the controller and clients reach it."""
        victim = self.chance.choice(NODES)
        others = [name for name in NODES if name != victim]
        yield from self._cut([way for other in others for way in ((victim, other), (other, victim))])

    def _cut(self, ways: list[tuple[str, str]]) -> Fault:
        self.done["cuts"] += 1
        with self._noted(f"cut {', '.join(f'{one}>{other}' for one, other in ways)}"):
            for way in ways:
                self.network.cut(*way)
            yield
            for way in ways:
                self.network.mend(*way)

    def unplug(self) -> Fault:
        name = self.chance.choice([*NODES, "ctl"])
        self.done["cuts"] += 1
        with self._noted(f"unplug {name}"):
            self.network[name].unplug()
            yield
            self.network[name].plug_in()

    def kill(self) -> Fault:
        """Kill some nodes at once, or the controller."""
        candidates = [name for name in (*NODES, *NODES, "ctl") if name not in self.faulty]
        count = self.chance.choice((1, 1, 1, 2, 3))
        victims = sorted({self.chance.choice(candidates) for _ in range(count)}) if candidates else []
        self.faulty.update(victims)
        with self._noted(f"kill {', '.join(victims) or 'nobody'}"):
            for name in victims:
                self._check_alive(name)
                if self.processes[name].runs:
                    self.processes[name].kill()
                    self.done["kills"] += 1
            yield
            for name in victims:
                self.processes[name].start()
        self.faulty.difference_update(victims)

    def pause(self) -> Fault:
        candidates = [name for name in (*NODES, *NODES, "ctl") if name not in self.faulty]
        victims = [self.chance.choice(candidates)] if candidates else []
        self.faulty.update(victims)
        with self._noted(f"pause {', '.join(victims) or 'nobody'}"):
            for name in victims:
                if self.processes[name].runs:
                    self.processes[name].signal(signal.SIGSTOP)
                    self.done["pauses"] += 1
            yield
            for name in victims:
                if self.processes[name].runs:
                    self.processes[name].signal(signal.SIGCONT)
        self.faulty.difference_update(victims)

    def fill_disk(self) -> Fault:
        """Leave no room on the disk of a node, or little."""
        name = self.chance.choice(NODES)
        ballast = self.disk(name) / f"ballast-{self.done['full disks']}"
        spare = self.chance.choice((0, 0, 4096, 65536))
        self.done["full disks"] += 1
        with self._noted(f"fill the disk of {name} but for {spare} bytes"):
            _fill(ballast, spare)
            yield
            ballast.unlink()

    FAULTS: tuple[tuple[Callable[[Rig], Fault], int], ...] = (
        (cut, 3), (isolate, 3), (split, 2), (unplug, 1), (kill, 5), (pause, 4), (fill_disk, 2),
    )  # fmt: skip

    @contextmanager
    def _noted(self, what: str) -> Iterator[None]:
        self.note(what)
        yield
        self.note(f"end of: {what}")

    # --- a run

    def run(self, seconds: float) -> None:
        for name in ("ctl", *NODES):
            self.processes[name].start()
        self._until(lambda: all(self._is_up(name) for name in ("ctl", *NODES)), "the nodes do not start")
        self._on_a_client("create", self.nodes, PARTITIONS, json.dumps(TOPIC_CONFIG))
        for name in CLIENTS:
            self.processes[name].start()
        self._until(lambda: all(self.processes[name].is_ready.is_set() for name in CLIENTS), "no clients")
        self.note("all is up")
        self._do_its_worst(time.monotonic() + seconds)
        self.note("no more faults")
        self._until(
            lambda: all(self._is_up(name) for name in ("ctl", *NODES)), "the nodes do not start again"
        )
        for name in CLIENTS:
            code = self.processes[name].end(60)
            assert code == 0, f"client {name} ended with {code}"
        self.note("the clients have ended")
        self._until_whole()
        self.note("all replicas are in sync")
        for name in NODES:
            code = self.processes[name].end(60)
            assert code == 0, f"node {name} ended with {code}"
            shutil.copytree(self.disk(name) / "log", self.directory / f"replica-{name}")
        self.processes["ctl"].end(60)

    def _do_its_worst(self, deadline: float) -> None:
        """Bursts of faults that overlap; after each of them, appends must be acknowledged again."""
        while time.monotonic() < deadline:
            self._burst(self.chance.randint(1, 4))
            goal = self._acknowledged() + self.chance.choice((1, 50, 200))
            self._until(lambda goal=goal: self._acknowledged() >= goal, "nothing is acknowledged any more")  # type: ignore[misc]

    def _burst(self, count: int) -> None:
        """Begin some faults, each for a while that may be longer than a session, and wait for their ends."""
        lasting: list[tuple[float, Fault]] = []
        next_at = 0.0
        while count or lasting:
            now = time.monotonic()
            for end, fault in lasting:
                if end <= now:
                    next(fault, None)
            lasting = [(end, fault) for end, fault in lasting if end > now]
            self._restart_those_that_could_not_start()
            if count and now >= next_at:
                count -= 1
                fault = self._next_kind()(self)
                next(fault)
                lasting.append((now + self.chance.choice((0.2, 1.0, 2.0, 4.0)), fault))
                next_at = now + self.chance.choice((0.0, 0.5, 1.0, 2.0))
            time.sleep(0.02)

    def _next_kind(self) -> Callable[[Rig], Fault]:
        """Each kind once, then by weight."""
        if not self._kinds:
            self._kinds = [fault for fault, weight in self.FAULTS for _ in range(weight)]
            self.chance.shuffle(self._kinds)
        return self._kinds.pop()

    def _acknowledged(self) -> int:
        """How many appends the clients know to be done."""
        self._restart_those_that_could_not_start()
        return sum((self.directory / f"{name}.history").read_bytes().count(b' "ok", ') for name in CLIENTS)

    def _is_up(self, name: str) -> bool:
        self._restart_those_that_could_not_start()
        return self.processes[name].is_ready.is_set() and self.processes[name].runs

    def _restart_those_that_could_not_start(self) -> None:
        """A process that ends before it is ready met a fault: its controller, or its disk, was away."""
        for name in ("ctl", *NODES):
            if name not in self.faulty and self.processes[name].exit_code is not None:
                self._check_alive(name)
                self.note(f"start {name} again")
                self.processes[name].start()

    def _check_alive(self, name: str) -> None:
        process = self.processes[name]
        code = process.exit_code
        assert code is None or not process.is_ready.is_set(), f"{name} ended by itself, with {code}"

    def _until_whole(self) -> None:
        """Wait until every replica is in sync and has everything."""
        while True:
            self._until(self._all_in_sync, "the replicas do not come in sync")
            self._on_a_client("finish", self.nodes, PARTITIONS, self.directory / "end.history")
            if self._all_in_sync():
                return

    def _all_in_sync(self) -> bool:
        found = json.loads(self.processes["ctl"].ask("isr"))
        return [len(isr) for isr in found] == [len(NODES)] * PARTITIONS

    def _on_a_client(self, *arguments: object) -> None:
        command = self.network[CLIENTS[0]].inside(sys.executable, PROGRAMS, *map(str, arguments))
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=2 * PATIENCE_S)
        assert done.returncode == 0, done.stderr

    def show_stacks(self) -> None:
        """Let every process write the stacks of its threads to its file of errors, and end."""
        for process in self.processes.values():
            if process.runs:
                process.signal(signal.SIGCONT)
                process.signal(signal.SIGABRT)

    def _until(self, condition: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, otherwise
            time.sleep(0.02)


def _fill(ballast: Path, spare: int) -> None:
    """Write a file that leaves this much room, or none, while others write, too."""
    with ballast.open("wb") as file:
        size, step = 0, 16 << 20
        while step >= 4096:
            room = os.statvfs(ballast)
            try:
                if room.f_bavail * room.f_frsize - step < spare:
                    raise OSError(errno.ENOSPC, "enough")
                os.posix_fallocate(file.fileno(), size, step)
                size += step
            except OSError:
                step //= 2


def main(seconds: float, seed: int, directory: Path) -> None:
    threading.Thread(target=_end_with_the_caller, daemon=True).start()
    rig = Rig(directory, seed)
    try:
        rig.run(seconds)
    except BaseException:
        rig.show_stacks()
        raise
    (directory / "done.json").write_text(json.dumps(rig.done))


def _end_with_the_caller() -> None:
    sys.stdin.read()
    os._exit(1)  # we are the first process of our namespace: all others end with us


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
