"""plumb chat: on a terminal (a pty) and in a pipe."""

import os
import pty
import select
import subprocess
import termios
import time

from fetched import fetched_model
from serving import PLUMB

FLAGS = ["--ctx", "1024", "--temperature", "0", "--max-tokens", "12"]


def model():
    return str(fetched_model("smollm2"))


def pipe(text, *flags):
    return subprocess.run([PLUMB, "chat", "--model", model(), *FLAGS, *flags], input=text, capture_output=True, text=True, timeout=120)


def test_in_a_pipe_there_are_no_colours_and_no_prompts():
    r = pipe("Say hello.\n/stats\n/nope\n/system Be brief.\n/system\n/reset\n/help\n/exit\nnever\n")
    assert r.returncode == 0 and "\x1b" not in r.stdout + r.stderr and "> " not in r.stdout
    lines = r.stdout.splitlines()
    assert len(lines[0]) > 3 and "prompt " in lines[1] and "answer 12 tokens" in lines[1]
    assert "context" in lines[2] and "Be brief." in r.stdout and "/reset" in r.stdout and "unknown command" in r.stderr
    assert "never" not in r.stdout


def test_the_same_seed_gives_the_same_conversation():
    text = "Tell me a story.\nAnd then?\n"
    a, b, c = (pipe(text, "--temperature", "1", "--seed", s).stdout for s in ("5", "5", "6"))
    assert a == b != c


def test_lines_are_joined_and_a_missing_model_is_said():
    one = pipe("one \\\ntwo\n").stdout
    assert one == pipe('"""one \ntwo"""\n').stdout
    r = subprocess.run([PLUMB, "chat", "--model", "/nope.gguf"], input="", capture_output=True, text=True, timeout=60)
    assert r.returncode == 1 and "/nope.gguf" in r.stderr


class Terminal:
    def __init__(self, state, *flags):
        self.data = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["XDG_STATE_HOME"] = str(state)
            os.environ["TERM"] = "xterm"
            os.execv(PLUMB, [PLUMB, "chat", "--model", model(), "--ctx", "1024", "--temperature", "0", *flags])

    def until(self, what, seconds=60):
        """Read on until `what` has come; what follows it stays for the next call."""
        end = time.time() + seconds
        while what not in self.data and time.time() < end:
            if select.select([self.fd], [], [], 0.2)[0]:
                try:
                    self.data += os.read(self.fd, 4096)
                except OSError:
                    break
        assert what in self.data, self.data
        self.data = self.data.split(what, 1)[1]

    def send(self, data):
        os.write(self.fd, data)

    def type(self, data, seconds=20):
        """Send once the line editor has the terminal: before, Ctrl-C would be the terminal's own."""
        end = time.time() + seconds
        while termios.tcgetattr(self.fd)[3] & termios.ICANON and time.time() < end:
            time.sleep(0.01)
        self.send(data)

    def exit_code(self, seconds=20):
        end = time.time() + seconds
        while time.time() < end:
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    os.read(self.fd, 4096)
                except OSError:
                    pass
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)
        raise AssertionError("it did not end")


def test_on_a_terminal(tmp_path):
    model()
    t = Terminal(tmp_path)
    t.until(b"\r\n> ")
    t.type(b"half a line")
    t.until(b"half a line")
    t.send(b"\x03")  # drops the line, not the program
    t.until(b"\r\n> ")
    t.type(b"Count from 1 to 1000.\n")
    t.until(b"\x1b[32m")
    t.send(b"\x03")  # stops the answer
    t.until(b"(stopped)")
    t.until(b"> ")
    t.type(b"/stats\n")
    t.until(b"context")
    t.until(b"> ")
    t.type(b"\x1b[A")  # the line before
    t.until(b"/stats")
    t.send(b"\x03")
    t.until(b"> ")
    t.type(b"\x04")
    assert t.exit_code() == 0
    history = tmp_path / "plumb/chat-history"
    assert "/stats" in history.read_text() and history.stat().st_mode & 0o077 == 0
