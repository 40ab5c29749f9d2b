"""Small programs that start another one: Spark runs what we name, not how we want it to run."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile


def make_starter(name: str, script: str) -> str:
    """Write a shell script into a new folder, under this name or path; returns the folder.

    It is removed when this process ends.
    """
    folder = tempfile.mkdtemp(prefix="commitlog-starter-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(script)
    os.chmod(path, 0o755)
    return folder
