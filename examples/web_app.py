"""A web application over a log: POST appends, a websocket and server-sent events follow, a group counts.

Needs `pip install commitlog fastapi uvicorn websockets`.

    python examples/web_app.py chat 8000
    curl -d '{"author": "alice", "text": "hello"}' -H 'Content-Type: application/json' localhost:8000/messages
    curl -N localhost:8000/messages/stream
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import uvicorn
from fastapi import FastAPI, Header, WebSocket
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from commitlog import Record, aio


class Message(BaseModel):
    """What people post."""

    author: str
    text: str


def web_app(path: str) -> FastAPI:
    """Return an application whose messages are in the log at `path`."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with aio.open(path) as log:
            await log.create_topic("messages", exists_ok=True)
            await log.create_topic("totals", config={"cleanup_policy": "compact"}, exists_ok=True)
            app.state.log = log
            app.state.messages = (await log.topic("messages"))[0]
            app.state.producer = log.producer(linger_ms=0, acks="all")
            counting = asyncio.create_task(count_messages(log))
            yield
            counting.cancel()
            with suppress(asyncio.CancelledError):
                await counting

    app = FastAPI(lifespan=lifespan)

    @app.post("/messages")
    async def post(message: Message) -> dict[str, int]:
        """Store a message; the answer comes when it is on disk."""
        value, author = message.model_dump_json().encode(), message.author.encode()
        stored = await app.state.producer.send("messages", value, author)
        return {"offset": stored.offset}

    @app.get("/messages/stream")
    async def stream(last_event_id: int | None = Header(None)) -> StreamingResponse:
        """Send messages as events. A browser that reconnects names the last one it got."""
        start = 0 if last_event_id is None else last_event_id + 1

        async def events() -> AsyncIterator[str]:
            async for record in app.state.messages.follow(start):
                yield f"id: {record.offset}\ndata: {as_json(record)}\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    @app.websocket("/messages/ws")
    async def websocket(socket: WebSocket, start: int = 0) -> None:
        """Send messages through a websocket, from an offset on."""
        await socket.accept()
        async for record in app.state.messages.follow(start):
            await socket.send_text(as_json(record))

    @app.get("/totals")
    async def totals() -> dict[str, int]:
        """Return how many messages each author has posted."""
        latest = await (await app.state.log.topic("totals")).latest()
        return {author.decode(): int(total.split()[0]) for author, total in latest.items()}

    return app


def as_json(record: Record) -> str:
    """Return a message with its offset, where a client goes on after it."""
    return json.dumps({"offset": record.offset, **json.loads(record.value or b"{}")})


async def count_messages(log: aio.CommitLog) -> None:
    """Keep the totals: for each author a number, and the offset up to which it counts.

    After a crash the group reads some messages again; those below that offset are not counted twice.
    """
    totals = await log.topic("totals")
    counted = {author: tuple(map(int, total.split())) for author, total in (await totals.latest()).items()}
    async with log.consumer("messages", group_id="counter", enable_auto_commit=False) as consumer:
        while True:
            for records in (await consumer.poll(timeout=60)).values():
                for record in records:
                    count, upto = counted.get(record.key, (0, -1))
                    if record.offset > upto:
                        counted[record.key] = count + 1, record.offset
                authors = list({record.key for record in records})
                await totals.append_many([b"%d %d" % counted[one] for one in authors], keys=authors)
                await consumer.commit()


if __name__ == "__main__":
    # a stream of events never ends by itself: after a second it is cut off
    uvicorn.run(web_app(sys.argv[1]), port=int(sys.argv[2]), timeout_graceful_shutdown=1, log_level="warning")
