"""Two hundred clients at once, three in ten of whom go at a random point: the rest get their answers, and nothing is left behind.

PLUMB_LOAD_SECONDS says how long (15 unless given; 10 under sanitizers)."""

import asyncio
import json
import os
import random
import socket
import struct
import time

from serving import HOST, SLOW, request, script

CLIENTS = 200
SECONDS = float(os.environ.get("PLUMB_LOAD_SECONDS") or (15 if SLOW == 1 else 10))
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def plan(rng):
    """(path, body, expected texts by index)"""
    stream = rng.random() < 0.6
    n = rng.choice([1, 1, 1, 2, 3])
    kind = rng.choice(["say", "count", "long", "completion"])
    if kind == "completion":
        words = "".join(rng.choice("abcdef ") for _ in range(rng.randrange(1, 60))) + "z"
        return COMPLETIONS, {"prompt": "!say " + words, "n": n, "stream": stream, "echo": True}, ["!say " + words + words] * n
    if kind == "say":
        text = "".join(rng.choice("ab é日👋") for _ in range(rng.randrange(1, 40))) + "z"
        command = "!say " + text
    else:
        k = rng.randrange(1, 120)
        text, command = ("0123456789" * 12)[:k], f"!count {k}"
    filler = "w " * rng.randrange(200, 900) if kind == "long" else ""
    body = {"messages": [{"role": "user", "content": filler + command}], "n": n, "stream": stream}
    if rng.random() < 0.3:
        body.update(priority=rng.randrange(-3, 3), deadline_ms=600000)
    return CHAT, body, [text] * n


def texts_of(data, stream, n):
    texts = [""] * n
    if not stream:
        for c in json.loads(data)["choices"]:
            texts[c["index"]] = c["message"]["content"] if "message" in c else c["text"]
        return texts
    events = [e[6:] for e in data.decode().split("\n\n") if e]
    assert events[-1] == "[DONE]", events[-1]
    for e in events[:-1]:
        for c in json.loads(e)["choices"]:
            texts[c["index"]] += (c["delta"].get("content") or "") if "delta" in c else c["text"]
    return texts


async def read_reply(reader):
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    status = int(head.split()[1])
    if "transfer-encoding: chunked" not in head:
        n = int(head.split("content-length: ")[1].split("\r\n")[0])
        return status, await reader.readexactly(n)
    data = b""
    while n := int(await reader.readline(), 16):
        data += await reader.readexactly(n)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return status, data


def drop(writer, rng):
    if rng.random() < 0.5:
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort() if rng.random() < 0.5 else writer.close()


async def go_early(reader, writer, raw, rng):
    """Leave within the head, within the body, before the reply, or within it."""
    where = rng.randrange(4)
    if where == 0:
        writer.write(raw[: rng.randrange(1, len(raw))])
    else:
        writer.write(raw)
        if where == 1:
            await asyncio.sleep(rng.random() * 0.02)
        elif where == 2:
            await asyncio.sleep(rng.random() * 0.5)
        else:
            await reader.read(rng.randrange(1, 2000))
    drop(writer, rng)


async def client(port, k, end, counts):
    rng = random.Random(k)
    while time.time() < end:
        reader, writer = await asyncio.open_connection(HOST, port)
        for _ in range(rng.randrange(1, 6)):  # requests of a connection
            path, body, want = plan(rng)
            raw = request(path, body)
            if rng.random() < 0.3:
                counts["gone"] += 1
                await go_early(reader, writer, raw, rng)
                break
            writer.write(raw)
            status, data = await asyncio.wait_for(read_reply(reader), 120)
            assert status == 200, (status, data)
            assert texts_of(data, body["stream"], body["n"]) == want
            counts["answered"] += 1
        writer.close()


async def all_clients(port, seconds):
    counts = {"answered": 0, "gone": 0}
    end = time.time() + seconds
    await asyncio.gather(*(client(port, k, end, counts) for k in range(CLIENTS)))
    return counts


def settled(server):
    st = server.wait_stats(seconds=30, calls=0, running=0, waiting=0, connections=1)
    time.sleep(0.2)
    return server.stats() if st else st


def test_two_hundred_clients_of_whom_many_go():
    with script("--rows=16", "--step-us=200", "--prompt-us=2", "--max-waiting=1000") as s:
        asyncio.run(all_clients(s.port, 2))  # buffers that stay reach their size
        before = settled(s)
        counts = asyncio.run(all_clients(s.port, SECONDS))
        after = settled(s)
        print(f"{counts} in {SECONDS:g} s; resident {before['resident_bytes'] >> 20} -> {after['resident_bytes'] >> 20} MiB")
        assert counts["answered"] > SECONDS * 10 and counts["gone"] > counts["answered"] * 0.2
        for name in ("fds", "threads", "cache", "score_bytes"):
            assert after[name] == before[name], name
        for category, n in after["memory"].items():
            assert n <= before["memory"][category] + (1 << 20 if category == "server" else 0), category
        assert after["memory"]["request"] == 0
        # The allocator keeps some of what was freed, and a sanitizer's quarantine much of it.
        assert after["resident_bytes"] < before["resident_bytes"] + ((64 if SLOW == 1 else 512) << 20)
        assert after["accepted"] == after["finished"] and after["failed"] == after["refused"] == after["expired"] == 0
        preparation = after["preparation"]["text"]
        assert preparation["queued"] == preparation["running"] == preparation["refused"] == 0
