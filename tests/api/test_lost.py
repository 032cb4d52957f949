"""A GPU that is lost under a running server (the scripted engine plays it): mended in the process, or by a new one in its place."""

import re
import time

from serving import SLOW, script


def ask(s, text):
    """The answer's text, or its error's."""
    status, reply = s.complete(text, max_tokens=20, temperature=0)
    assert status in (200, 500), reply
    return reply["choices"][0]["text"] if status == 200 else "error: " + reply["error"]["message"]


def test_a_device_that_is_opened_again():
    with script() as s:
        assert ask(s, "!lose") == "error: the device is gone"
        assert ask(s, "!say alive") == "alive"
        assert s.stats()["device_mended"] == 1


def test_a_process_that_cannot_use_it_again_starts_anew():
    s = script()
    try:
        assert ask(s, "!say one") == "one"
        assert ask(s, "!ruin") == "error: the device is gone"
        end, port = time.time() + 60 * SLOW, None
        while not port or not s.lines[-1].startswith("ready"):
            assert time.time() < end
            s.lines.append(s.proc.stdout.readline().rstrip())
            m = re.search(r"http://\S+:(\d+)", s.lines[-1])
            port = int(m[1]) if m else port
        s.port = port
        assert s.proc.poll() is None
        assert ask(s, "!say two") == "two"
        assert s.stats()["device_mended"] == 0  # a new process counts from the start
    finally:
        err = s.stop(check=False)
    assert s.proc.returncode == 0
    assert "this process cannot use it again: nothing answers there" in err
