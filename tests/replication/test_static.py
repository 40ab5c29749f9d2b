from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import wait_until

from commitlog import files
from commitlog.errors import (
    ClosedError,
    CorruptionError,
    LogLockedError,
    NoControllerError,
    StaleControllerError,
    UnsupportedFormatError,
)
from commitlog.replication import rules
from commitlog.replication.cluster import ClusterState
from commitlog.replication.commands import CreateTopic, DeleteTopic, JoinNode, LeaveNode, Reassign
from commitlog.replication.controllers.static import StaticController
from commitlog.replication.controllers.stored import state_from_json, state_to_json
from replication.rigs import ORDERS, Listener


def with_orders(controller: StaticController, nodes: int = 2) -> list[Listener]:
    listeners = [Listener(node_id, controller) for node_id in range(1, nodes + 1)]
    for listener in listeners:
        listener.join()
    controller.submit(CreateTopic("orders", 1, nodes, {}))
    wait_until(lambda: all(listener.orders() is not None for listener in listeners))
    return listeners


def test_epochs_and_versions_go_on_where_they_were_after_a_restart(tmp_path: Path) -> None:
    first = StaticController.open(str(tmp_path / "controller"))
    with_orders(first)
    first.leave(1, 0)
    before = first.state()
    first.close()
    second = StaticController.open(str(tmp_path / "controller"))
    after = second.state()
    assert (after.epoch, after.version > before.version) == (before.epoch + 1, True)
    assert not after.nodes
    one, earlier = after.partition(ORDERS), before.partition(ORDERS)
    assert one is not None and earlier is not None
    assert (one.leader, one.isr) == (None, (2,))
    assert second.join(JoinNode(2, "host:2", clean=True), lambda state: None) > before.nodes[2].incarnation
    led = second.state().partition(ORDERS)
    assert led is not None and (led.leader, led.leader_epoch) == (2, earlier.leader_epoch + 1)
    second.close()


def test_nodes_of_other_processes_are_taken_to_be_alive_after_a_restart(tmp_path: Path) -> None:
    first = StaticController.open(str(tmp_path))
    first.register(JoinNode(1, "host:1", clean=True))
    first.close()
    second = StaticController.open(str(tmp_path), keep_nodes=True)
    assert second.state().nodes == first.state().nodes
    second.close()


def test_a_node_that_was_away_for_too_many_reigns_is_refused_and_the_controller_goes_on(
    tmp_path: Path,
) -> None:
    first = StaticController.open(str(tmp_path))
    first.register(JoinNode(1, "host:1", clean=True))
    away = first.state().known
    first.close()
    for _ in range(rules.MOST_REIGNS + 1):
        StaticController.open(str(tmp_path)).close()
    controller = StaticController.open(str(tmp_path))
    with pytest.raises(StaleControllerError):
        controller.register(JoinNode(1, "host:1", clean=True, known=away))
    controller.register(JoinNode(2, "host:2", clean=True))
    assert (controller.problem(), set(controller.state().nodes)) == (None, {2})
    controller.close()


def test_nobody_hears_of_a_state_that_could_not_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = StaticController.open(str(tmp_path))
    first, _ = with_orders(controller)
    before = controller.state()

    def fail(path: str, contents: bytes, temporary: str) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(files, "write_whole", fail)
    with pytest.raises(NoControllerError, match="Input/output error"):
        controller.submit(CreateTopic("later", 1, 1, {}))
    monkeypatch.undo()
    with pytest.raises(NoControllerError):
        controller.submit(DeleteTopic("orders"))
    first.propose(first.proposal(1))
    controller.close()
    assert controller.state() is before
    assert first.decisions == []
    assert first.state == before


def test_two_controllers_cannot_have_one_directory(tmp_path: Path) -> None:
    first = StaticController.open(str(tmp_path))
    with pytest.raises(LogLockedError):
        StaticController.open(str(tmp_path))
    first.close()
    StaticController.open(str(tmp_path)).close()


@pytest.mark.parametrize(
    ("contents", "error"),
    [
        (b"", CorruptionError),
        (b'{"format":2,"state":{}}', CorruptionError),
        (b'{"format":3}', UnsupportedFormatError),
    ],
)
def test_a_file_that_is_not_ours_is_refused(tmp_path: Path, contents: bytes, error: type[Exception]) -> None:
    (tmp_path / "cluster.json").write_bytes(contents)
    with pytest.raises(error):
        StaticController.open(str(tmp_path))


def test_a_node_that_fails_when_it_is_told_does_not_keep_others_from_hearing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    controller = StaticController()

    def fail(state: ClusterState) -> None:
        raise RuntimeError("no disk")

    controller.join(JoinNode(1, "host:1", clean=True), fail)
    second = Listener(2, controller)
    second.join()
    wait_until(lambda: set(second.state.nodes) == {1, 2})
    controller.close()
    assert "no disk" in caplog.text


def test_a_node_may_ask_its_controller_when_it_is_told() -> None:
    controller = StaticController()
    asked = threading.Event()

    def changed(state: ClusterState) -> None:
        if "orders" not in state.topics:
            controller.submit(CreateTopic("orders", 1, 1, {}))
        else:
            asked.set()

    controller.join(JoinNode(1, "host:1", clean=True), changed)
    assert asked.wait(30)
    controller.close()


def test_who_is_to_make_the_calls_may_be_chosen() -> None:
    calls: list[Callable[[], None]] = []
    controller = StaticController(call_soon=calls.append)
    listener = Listener(1, controller)
    listener.join()
    controller.submit(CreateTopic("orders", 1, 1, {}))
    assert listener.heard == []
    while calls:
        calls.pop(0)()
    assert [state.version for state in listener.heard] == [2]
    listener.propose(listener.proposal(1))
    assert listener.decisions == []
    while calls:
        calls.pop(0)()
    assert [counts for counts, _ in listener.decisions] == [True]


def test_a_closed_controller_changes_nothing() -> None:
    controller = StaticController()
    controller.close()
    controller.close()
    with pytest.raises(ClosedError):
        controller.submit(CreateTopic("orders", 1, 1, {}))


def test_a_state_looks_the_same_after_json() -> None:
    controller = StaticController()
    for node_id in (1, 2, 3):
        controller.register(JoinNode(node_id, f"host:{node_id}", clean=True))
    controller.submit(CreateTopic("orders", 3, 2, {"retention_ms": 5}))
    controller.submit(Reassign(ORDERS, (3, 1)))
    controller.submit(LeaveNode(2, controller.state().nodes[2].incarnation))
    state = controller.state()
    assert state_from_json(json.loads(json.dumps(state_to_json(state)))) == state
    controller.close()
