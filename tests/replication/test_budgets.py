"""How many connections there may be, and what is logged of those that are refused."""

from __future__ import annotations

import pytest

from commitlog.replication.transports.budgets import Budgets, source_of
from commitlog.replication.transports.limited_warnings import LimitedWarnings
from commitlog.replication.transports.rights import Role


def budgets(strangers: int = 4, connections: int = 3, per_address: int = 2) -> Budgets[str]:
    return Budgets(strangers, connections, per_address)


def test_the_oldest_stranger_of_the_address_with_most_strangers_goes() -> None:
    few = budgets(strangers=4)
    arrivals = [("a", "10.0.0.1"), ("b", "10.0.0.2"), ("c", "10.0.0.2"), ("d", "10.0.0.3")]
    assert [few.meet(*one) for one in arrivals] == [None] * 4
    assert few.meet("e", "10.0.0.4") == "b"
    assert few.meet("f", "10.0.0.5") == "a"  # all have one: the oldest of all


def test_one_address_that_floods_puts_out_only_its_own() -> None:
    few = budgets(strangers=4)
    few.meet("a node", "10.0.0.1")
    gone = [few.meet(f"flood {number}", "10.0.0.9") for number in range(100)]
    assert gone[3:] == [f"flood {number}" for number in range(97)]
    assert few.admit("a node", Role.NODE) is None


def test_who_was_put_out_is_not_admitted_any_more() -> None:
    few = budgets(strangers=1)
    few.meet("slow", "10.0.0.1")
    assert few.meet("quick", "10.0.0.1") == "slow"
    assert few.admit("slow", Role.NODE) is not None
    assert few.admit("quick", Role.NODE) is None


def test_clients_cannot_take_the_room_of_nodes() -> None:
    few = budgets(connections=3, per_address=99)
    for number in range(3):
        few.meet(f"client {number}", "10.0.0.1")
        assert few.admit(f"client {number}", Role.CLIENT) is None
    few.meet("one more", "10.0.0.2")
    assert few.admit("one more", Role.ADMINISTRATOR) == "it accepts no more connections"
    few.meet("a node", "10.0.0.1")
    assert few.admit("a node", Role.NODE) is None
    few.remove("client 0")
    few.meet("one more", "10.0.0.2")
    assert few.admit("one more", Role.CLIENT) is None


def test_an_address_has_so_many_clients_and_others_have_theirs() -> None:
    few = budgets(connections=10, per_address=2)
    refusals = []
    for number, address in enumerate(["10.0.0.1"] * 3 + ["10.0.0.2"]):
        few.meet(f"client {number}", address)
        refusals.append(few.admit(f"client {number}", Role.CLIENT))
    assert refusals == [None, None, "it accepts no more connections from 10.0.0.1", None]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
    ],
)
def test_which_addresses_are_of_one_machine(one: str, other: str, same: bool) -> None:
    assert (source_of(one) == source_of(other)) is same


def test_complaints_are_one_line_a_second_and_say_how_many_there_were(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [100.0]
    complaints = LimitedWarnings(lambda: now[0])
    for number in range(10_000):
        complaints.warn(f"stranger {number}")
        complaints.catch_up()
    assert caplog.messages == ["stranger 0"]
    now[0] += 1
    complaints.catch_up()
    complaints.catch_up()
    assert caplog.messages[1:] == ["stranger 9999 (and 9998 more in the last second)"]
    now[0] += 1
    complaints.catch_up()
    complaints.warn("another day")
    assert caplog.messages[2:] == ["another day"]
