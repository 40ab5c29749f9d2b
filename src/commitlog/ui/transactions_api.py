"""Transactions: their state, their age, and where they are open."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.requests import Request

from commitlog.log import CommitLog
from commitlog.partition import Partition
from commitlog.transactions.coordinator import TransactionDescription
from commitlog.ui.requests import JsonAnswer, limit, number, ui_of

_MOST_PARTITIONS = 20  # that a transaction is listed with


def transactions(request: Request) -> JsonAnswer:
    """List transactions whose id contains `search`, open ones first, from number `from` on."""
    search = request.query_params.get("search", "").lower()
    found = [one for one in ui_of(request).log.transactions() if search in one.transactional_id.lower()]
    found.sort(key=lambda one: -1 if one.age_ms is None else one.age_ms, reverse=True)
    first = number(request, "from", 0) or 0
    chosen = found[first : first + limit(request, 50, 200)]
    return JsonAnswer({"transactions": [_listed(one) for one in chosen], "from": first, "total": len(found)})


def _listed(one: TransactionDescription) -> dict[str, Any]:
    return {
        **asdict(one),
        "producer_id": str(one.producer_id),  # a number in a browser has 53 bits
        "partitions": len(one.partitions),
        "listed": [name._asdict() for name in one.partitions[:_MOST_PARTITIONS]],
    }


def open_in(log: CommitLog, partition: Partition) -> list[dict[str, Any]]:
    """Return the transactions that are open in a partition, each with its id and its first offset."""
    opened = partition.open_transactions() if partition.last_stable_offset < partition.high_watermark else []
    if not opened:
        return []
    known = {one.producer_id: one for one in log.transactions()}
    return [
        {
            "transactional_id": about.transactional_id if about else None,
            "state": about.state if about else None,
            "age_ms": about.age_ms if about else None,
            "first_offset": one.first_offset,
        }
        for one in opened
        for about in [known.get(one.producer_id)]
    ]
