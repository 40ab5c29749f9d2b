"""The files for Kubernetes, which nobody can run here, name only what exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "spark_cluster"
DOCKERFILE = (FOLDER / "Dockerfile").read_text()
MANIFEST: list[dict[str, Any]] = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))


def names(kind: str) -> set[str]:
    return {one["metadata"]["name"] for one in MANIFEST if one["kind"] == kind}


def test_the_image_is_made_of_what_is_in_the_repository() -> None:
    copied = [line.split()[1:-1] for line in re.findall(r"^COPY (?!--).*", DOCKERFILE, re.MULTILINE)]
    assert all((ROOT / path).exists() for paths in copied for path in paths)
    version = re.search(r"^ARG SPARK=(\d+\.\d+)", DOCKERFILE, re.MULTILINE)
    assert version is not None
    assert (4, 0) <= tuple(map(int, version[1].split("."))) < (4, 4)  # as pyproject.toml says
    assert '"pyspark>=4.0,<4.4"' in (ROOT / "pyproject.toml").read_text()


def test_driver_and_executors_have_the_same_volume_and_the_same_secret() -> None:
    (job,) = (one for one in MANIFEST if one["kind"] == "Job")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    conf = dict(one.removeprefix("--conf=").split("=", 1) for one in container["args"] if "--conf" in one)
    roles = {
        role: {
            name.removeprefix(f"spark.kubernetes.{role}."): value
            for name, value in conf.items()
            if name.startswith(f"spark.kubernetes.{role}.")
        }
        for role in ("driver", "executor")
    }
    assert roles["driver"] == roles["executor"]
    claim = "volumes.persistentVolumeClaim.log"
    assert {roles["driver"][f"{claim}.options.claimName"]} == names("PersistentVolumeClaim")
    assert {f"secrets.{name}" for name in names("Secret")} <= roles["driver"].keys()
    *_, program, folder = container["args"]
    assert folder.startswith(roles["driver"][f"{claim}.mount.path"] + "/")
    account = conf["spark.kubernetes.authenticate.driver.serviceAccountName"]
    assert {account} == {pod["serviceAccountName"]} == names("ServiceAccount")
    image = container["image"]
    assert image == conf["spark.kubernetes.container.image"]
    assert f"--tag {image} " in DOCKERFILE
    assert f"--tag {image} " in (FOLDER / "README.md").read_text()
    (source,) = re.findall(r"^COPY (\S+) /opt/spark_pipeline$", DOCKERFILE, re.MULTILINE)
    assert (ROOT / source / program.removeprefix("local:///opt/spark_pipeline/")).is_file()
