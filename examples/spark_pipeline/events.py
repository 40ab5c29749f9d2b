"""The raw events: page views as a web server would log them, with everything that goes wrong on the way.

They depend only on the number of the hour, so that a restarted run makes the same events again.
"""

import json
import random
from typing import NamedTuple

import pyarrow as pa

import commitlog

START_MS = 1_750_000_200_000  # ten minutes begin here
HOURS, VIEWS_AN_HOUR = 6, 3_000
HOUR_MS, MINUTE_MS = 3_600_000, 60_000
PAGES = {"/": "home", "/search": "search", "/shoes": "shop", "/hats": "shop", "/cart": "checkout"}
MALFORMED = [b"", b"{", b'{"id": "x"}', b'{"id": 1, "user": "u", "page": "/", "time": "noon"}', b"\xff\xfe"]


class Event(NamedTuple):
    """A record of the topic "raw"; its timestamp is its time of arrival."""

    arrived_ms: int
    key: bytes
    value: bytes


def of_hour(hour: int) -> list[Event]:
    """Make the events that arrive in an hour, in order."""
    chance = random.Random(hour)
    found: list[Event] = []
    for number in range(VIEWS_AN_HOUR):
        arrived = START_MS + hour * HOUR_MS + chance.randrange(HOUR_MS)
        user = b"user %d" % chance.randrange(500)
        luck = chance.random()
        if luck < 0.02:
            found.append(Event(arrived, user, chance.choice(MALFORMED)))
            continue
        # most arrive at once, some up to 14 minutes late, and a few hours too late
        late_ms = chance.randrange(2_000)
        if luck < 0.12:
            late_ms = chance.randrange(14 * MINUTE_MS)
        elif luck < 0.13:
            late_ms = 3 * HOUR_MS
        view = {
            "id": f"{hour}-{number}",
            "user": user.decode(),
            "page": "/old" if luck > 0.99 else chance.choice(list(PAGES)),
            "time": arrived - late_ms,
            "ms": chance.randrange(20, 900),
        }
        found.append(Event(arrived, user, json.dumps(view).encode()))
        if 0.2 < luck < 0.25:  # a browser that got no answer sends it again
            found.append(found[-1]._replace(arrived_ms=arrived + chance.randrange(5 * MINUTE_MS)))
    return sorted(found)


def append_all(log: commitlog.CommitLog) -> int:
    """Append the missing hours to the topic "raw", each once; returns the number of events."""
    topic = log.topic("raw")
    for hour in range(HOURS):
        published = log.published("events")
        if published is not None and published >= hour:
            continue
        events = of_hour(hour)
        numbers = topic.partition_numbers(pa.array([event.key for event in events], pa.binary()))
        staged = []
        for partition in range(len(topic.partitions)):
            ours = [event for event, number in zip(events, numbers, strict=True) if number == partition]
            times, keys, values = zip(*ours, strict=True)
            with log.stage("raw", partition) as writer:
                writer.append(pa.table({"timestamp": times, "key": keys, "value": values}))
                staged.append(writer.finish())
        log.publish("events", hour, staged)
    return sum(partition.next_offset for partition in topic.partitions)
