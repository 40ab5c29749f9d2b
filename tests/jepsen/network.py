"""Hosts with a network of their own, made of namespaces; nothing reaches the machine's own network.

This runs inside a network namespace of its own (rig.py enters one), which is the router between the hosts.
A host is a namespace that lives as long as the process that holds it, so nothing is left when the rig ends,
however it ends.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path


def ip(*words: object) -> None:
    """Run ip(8); it must succeed."""
    command = ["ip", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


class Host:
    """A machine as its processes see it: an address, and a way to all others through the router."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.address = f"10.99.{number}.2"
        self._gateway = f"10.99.{number}.1"
        self._holder = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE)
        self._namespace = f"/proc/{self._holder.pid}/ns/net"
        self._wait()
        ip("link", "add", "name", name, "type", "veth", "peer", "name", "eth0", "netns", self._holder.pid)
        ip("addr", "add", f"{self._gateway}/24", "dev", name)
        ip("link", "set", "dev", name, "up")
        self._ip("link", "set", "dev", "lo", "up")
        self._ip("addr", "add", f"{self.address}/24", "dev", "eth0")
        self.plug_in()

    def _wait(self) -> None:
        """Wait until the holder has left our namespace."""
        ours, deadline = os.readlink("/proc/self/ns/net"), time.monotonic() + 30
        while os.readlink(self._namespace) == ours:
            assert time.monotonic() < deadline, "unshare --net does nothing"
            time.sleep(0.005)

    def _ip(self, *words: object) -> None:
        done = subprocess.run(
            [*self.inside("ip"), *map(str, words)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"ip {words} on {self.name}: {done.stderr}"

    def inside(self, *command: str) -> list[str]:
        """Return the command line that runs a command on this host; the process is the command itself."""
        return ["nsenter", f"--net={self._namespace}", *command]

    def unplug(self) -> None:
        """Take the interface down: its own processes are told that nothing can be reached."""
        self._ip("link", "set", "dev", "eth0", "down")

    def plug_in(self) -> None:
        self._ip("link", "set", "dev", "eth0", "up")
        self._ip("route", "replace", "default", "via", self._gateway)


class Network:
    """All hosts, and the cuts between them: what is cut is dropped by the router without a word."""

    def __init__(self, *names: str) -> None:
        ip("link", "set", "dev", "lo", "up")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        self.hosts = {name: Host(name, number) for number, name in enumerate(names, 1)}

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def cut(self, one: str, other: str) -> None:
        """Drop what goes from one host to another; what goes back arrives."""
        ip("rule", "add", "from", self[one].address, "to", self[other].address, "blackhole")

    def mend(self, one: str, other: str) -> None:
        ip("rule", "del", "from", self[one].address, "to", self[other].address, "blackhole")
