"""The network within one process: what its faults do, and that the transport keeps its contract."""

from __future__ import annotations

import doctest
from typing import Any, cast

import pytest

from commitlog import testing
from commitlog.replication.messages import Decided, Describe, Message
from commitlog.replication.ports import Reply
from commitlog.testing import Faults, LocalNetwork, LocalTransport


def counting(network: LocalNetwork, name: str = "node") -> tuple[LocalTransport, list[int]]:
    """A node that answers everything, and when it was asked."""
    asked: list[int] = []

    def handle(request: Message, reply: Reply) -> None:
        asked.append(network.now_ms())
        reply(Decided(1))

    transport = network.transport(name)
    transport.serve(handle)
    return transport, asked


def ask(client: LocalTransport, answers: list[Message | None], timeout_ms: int = 100) -> None:
    client.request("node", Describe(), answers.append, timeout_ms)


def test_the_examples_of_the_module_run() -> None:
    assert doctest.testmod(testing, optionflags=doctest.ELLIPSIS).failed == 0


def test_an_answer_takes_the_time_of_two_messages_and_none_of_ours() -> None:
    network = LocalNetwork(faults=Faults((30, 30)))
    _, asked = counting(network)
    client, answers = network.transport("client"), list[Any]()
    ask(client, answers)
    assert answers == []
    assert client.wait_for(lambda: bool(answers), 100)
    assert (asked, answers, client.now_ms()) == ([30], [Decided(1)], 60)


def test_a_lost_request_is_answered_with_none_when_its_time_is_over() -> None:
    network = LocalNetwork(faults=Faults(loss=1.0))
    _, asked = counting(network)
    client, answers = network.transport("client"), list[Any]()
    ask(client, answers)
    network.run_for(99)
    assert answers == []
    network.run_for(1)
    assert (asked, answers) == ([], [None])


def test_a_request_that_comes_twice_is_answered_once() -> None:
    network = LocalNetwork(faults=Faults(duplication=1.0))
    _, asked = counting(network)
    client, answers = network.transport("client"), list[Any]()
    ask(client, answers)
    network.run_for(200)
    assert (len(asked), answers) == (2, [Decided(1)])


@pytest.mark.parametrize(("reordering", "in_order"), [(False, True), (True, False)])
def test_messages_overtake_one_another_only_where_that_is_wanted(reordering: bool, in_order: bool) -> None:
    network = LocalNetwork(seed=1, faults=Faults((1, 50), reordering=reordering))
    came: list[str] = []
    network.transport("node").serve(lambda request, _: came.append(cast("Describe", request).topics[0]))
    client = network.transport("client")
    for number in range(20):
        client.request("node", Describe((f"{number:02}",)), lambda answer: None, 100)
    network.run_for(100)
    assert (came == sorted(came)) is in_order
    assert len(came) == 20


def test_a_cut_lets_nothing_through_one_way_or_both_until_it_heals() -> None:
    network = LocalNetwork()
    _, asked = counting(network)
    client, answers = network.transport("client"), list[Any]()
    network.partition("node", "client", one_way=True)
    ask(client, answers)
    network.run_for(100)
    assert (len(asked), answers) == (1, [None])
    network.partition("client", "node")
    ask(client, answers)
    network.run_for(100)
    assert (len(asked), answers) == (1, [None, None])
    network.heal()
    ask(client, answers)
    network.run_for(100)
    assert (len(asked), answers) == (2, [None, None, Decided(1)])


def test_a_paused_node_does_everything_later_and_its_clock_goes_on() -> None:
    network = LocalNetwork()
    node, asked = counting(network)
    ticks: list[int] = []
    node.call_every(10, lambda: ticks.append(node.now_ms()))
    client, answers = network.transport("client"), list[Any]()
    network.pause("node")
    ask(client, answers, timeout_ms=1000)
    network.run_for(500)
    assert (asked, ticks, answers) == ([], [], [])
    network.resume("node")
    network.run_for(20)
    assert (asked, answers) == ([500], [Decided(1)])
    assert ticks[0] == 500


def test_a_crashed_node_is_silent_and_another_one_may_take_its_name() -> None:
    network = LocalNetwork()
    node, asked = counting(network)
    answers: list[Message | None] = []
    node.request("node", Describe(), answers.append, 50)
    network.crash("node")
    network.run_for(100)
    assert (asked, answers) == ([], [])
    _, asked = counting(network)
    ask(network.transport("client"), answers)
    network.run_for(100)
    assert (len(asked), answers) == (1, [Decided(1)])


def test_closing_answers_what_is_under_way_with_none_and_may_be_done_twice() -> None:
    network = LocalNetwork()
    client, answers = network.transport("client"), list[Any]()
    ask(client, answers)
    client.close()
    client.close()
    network.run_for(200)
    assert answers == [None]


def test_clocks_may_differ_and_run_at_their_own_pace() -> None:
    network = LocalNetwork()
    node = network.transport("node", skew_ms=1000, drift=2.0)
    ticks: list[int] = []
    node.call_every(100, lambda: ticks.append(network.now_ms()))
    network.run_for(200)
    assert (node.now_ms(), ticks) == (1400, [50, 100, 150, 200])


def test_what_fails_when_it_is_called_now_and_then_is_called_again(caplog: pytest.LogCaptureFixture) -> None:
    network = LocalNetwork()
    calls: list[int] = []

    def fail() -> None:
        calls.append(network.now_ms())
        raise ValueError("as planned")

    network.transport("node").call_every(10, fail)
    network.run_for(30)
    assert calls == [10, 20, 30]
    assert "as planned" in caplog.text
