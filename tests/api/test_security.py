"""Who may use a server: keys, listening, TLS, CORS, and that no URL is ever fetched. Over the scripted engine (cases B49, B50, B55)."""

import http.server
import json
import os
import re
import socket
import ssl
import stat
import subprocess
import threading
import time
import warnings

import httpx2
import openai
import pytest
from serving import HOST, PLUMB, ROOT, SERVE_SCRIPT, SLOW, Reply, request, script, text_of

CHAT = "/v1/chat/completions"
KEY = "sk-test-12345678"
OTHER = "sk-other-1234567"


@pytest.fixture(scope="module")
def keyed():
    with script(f"--api-key={KEY}", f"--api-key={OTHER}", "--cors-origin=https://page.test") as s:
        yield s


def say(text, **fields):
    return {"messages": [{"role": "user", "content": "!say " + text}], **fields}


def fails_to_start(*args, env=None):
    p = subprocess.run(args, capture_output=True, text=True, timeout=30, env={**os.environ, **(env or {})})
    assert p.returncode == 1, (p.returncode, p.stdout, p.stderr)
    return p.stderr


# --- keys ---

GETS = "/v1 /v1/models /v1/models/script /models /metrics /stats /nope /v1/nope /".split()
POSTS = "/v1/chat/completions /chat/completions /v1/completions /completions /signal /tokenize /detokenize /apply-template /nope".split()


def routes(keyed):
    """All paths that the server itself names, and some that it does not know."""
    index = keyed.call("/v1", headers={"x-api-key": KEY})[2]["endpoints"]
    assert "/v1/chat/completions" in index and "/health" in index
    paths = {p.replace("{id}", "x") for p in index if not re.match(r"(/v1)?/health", p)}
    return [("GET", p) for p in sorted(paths | set(GETS))] + [("POST", p) for p in sorted(paths | set(POSTS))] + [
        ("DELETE", "/v1/requests/x"), ("HEAD", "/v1/models"), ("PUT", "/v1/models")]


WRONG = [
    {}, {"Authorization": "Bearer " + KEY[:-1]}, {"Authorization": "Bearer " + KEY + "x"}, {"Authorization": "Bearer "},
    {"Authorization": KEY}, {"Authorization": "Basic " + KEY}, {"x-api-key": ""}, {"x-api-key": KEY[::-1]}, {"x-api-key": KEY.upper()},
    {"Authorization": "Bearer"}, {"Authorization": f"Bearer {KEY},{OTHER}"}, {"x-api-key": "a" * 8000},
]


def test_every_route_asks_for_a_key(keyed):
    for method, path in routes(keyed):
        for headers in WRONG if path == CHAT else WRONG[:3]:
            with keyed.connect() as c:
                c.sendall(request(path, b"{}" if method == "POST" else None, method=method, headers=headers))
                status, got, value = Reply(c).read(no_body=method == "HEAD")
            assert status == 401 and got["www-authenticate"] == "Bearer", (method, path, headers, status)
            if method == "HEAD":
                continue
            assert KEY not in json.dumps(value) and OTHER not in json.dumps(value)
            if path.startswith("/v1/messages"):
                assert value["type"] == "error" and value["error"]["type"] == "authentication_error"
                assert got["request-id"] == value["request_id"] == got["x-request-id"]
            else:
                assert value["error"]["type"] == "authentication_error" and value["error"]["code"] == "invalid_api_key"
    assert keyed.call(f"/v1/models?api_key={KEY}")[0] == keyed.call(f"/v1/models?key={KEY}")[0] == 401


def test_any_of_the_keys_opens_in_both_forms(keyed):
    for key in (KEY, OTHER):
        for headers in ({"Authorization": "Bearer " + key}, {"authorization": "bearer   " + key}, {"x-api-key": key},
                        {"X-API-Key": f"  {key} "}, {"Authorization": "Bearer wrong-wrong", "x-api-key": key}):
            assert keyed.call("/v1/models", headers=headers)[0] == 200, headers
            assert keyed.call(CHAT, say("in"), headers=headers)[2]["choices"][0]["message"]["content"] == "in"


def test_health_and_preflights_are_open(keyed):
    for path in ("/health", "/health/live", "/health/ready", "/v1/health"):
        assert keyed.call(path)[0] == 200
    asked = {"Origin": "https://page.test", "Access-Control-Request-Method": "POST",
             "Access-Control-Request-Headers": "authorization,x-stainless-lang,anthropic-version"}
    status, got, _ = keyed.call(CHAT, method="OPTIONS", headers=asked)
    assert status == 204 and got["access-control-allow-headers"] == asked["Access-Control-Request-Headers"]
    asked["Access-Control-Request-Headers"] = "x(y)"
    assert "authorization" in keyed.call(CHAT, method="OPTIONS", headers=asked)[1]["access-control-allow-headers"]
    assert keyed.call(CHAT, method="OPTIONS", headers={**asked, "Origin": "http://evil.test"})[0] == 403
    # with a key, the page under a rebound name has nothing; so names of the machine need no list
    assert keyed.call("/v1/models", headers={"Host": "my-box:8080", "x-api-key": KEY})[0] == 200
    assert keyed.call("/v1/models", headers={"Host": "my-box:8080"})[0] == 401


def test_metrics_may_be_public():
    with script(f"--api-key={KEY}", "--metrics-public") as s:
        assert s.call("/metrics")[0] == 200 and s.call("/stats")[0] == 401 and s.call("/v1")[0] == 401


def test_a_refused_body_is_not_read(keyed):
    with keyed.connect() as c:
        c.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30000000\r\n\r\n".encode())
        status, headers, _ = Reply(c).read()
        assert status == 401 and headers["connection"] == "close"


def test_the_official_client_is_told(keyed):
    good = openai.OpenAI(base_url=keyed.url + "/v1", api_key=OTHER, max_retries=0)
    assert [m.id for m in good.models.list()] == ["script"]
    bad = openai.OpenAI(base_url=keyed.url + "/v1", api_key="sk-wrong-12345", max_retries=0)
    with pytest.raises(openai.AuthenticationError) as e:
        bad.models.list()
    assert e.value.code == "invalid_api_key" and "sk-wrong" not in str(e.value)


def test_comparing_takes_as_long_for_any_key():
    """What can be seen of constant time from here: hashes are compared, by the function made for it, all of them."""
    text = (ROOT / "src/server/guard.c").read_text()
    body = text[text.index("bool guard_key("):]
    assert "CRYPTO_memcmp" in body[: body.index("\n}\n")]
    assert not re.search(r"(?<!CRYPTO_)\b(str|mem)n?(case)?cmp\(", body[: body.index("\n}\n")])


def test_keys_are_never_logged():
    with script(f"--api-key={KEY}") as s:
        s.call("/v1/models", headers={"x-api-key": KEY})
        s.call("/v1/models", headers={"x-api-key": "sk-wrong-12345"})
        err = s.stop()
    assert KEY not in err and "sk-wrong" not in err


def test_keys_come_from_a_file_and_the_environment(tmp_path):
    """The program reads them before it loads a model, so a bad file is said although there is no model."""
    missing = tmp_path / "none.gguf"
    serve = [PLUMB, "serve", "--model", str(missing), "--port", "0"]
    f = tmp_path / "keys"
    for text, why in (("", "has no keys"), ("# only\n\n  \n", "has no keys"), ("short\n", "8 to 512"), ("x" * 600, "8 to 512"),
                      ("has a blank\n", "byte 4"), ("ünïcode-key-1\n", "byte 1")):
        f.write_text(text)
        f.chmod(0o600)
        err = fails_to_start(*serve, "--api-key-file", str(f))
        assert why in err and "none.gguf" not in err, err
        assert not text.strip() or text.strip()[:10] not in err
    assert "absent" in fails_to_start(*serve, "--api-key-file", str(tmp_path / "absent"))
    f.write_text(f"# of the team\n  {KEY}\t\r\n\n{OTHER}\n")
    f.chmod(0o644)
    err = fails_to_start(*serve, "--api-key-file", str(f), "--host", "0.0.0.0")  # keys are there: only the model is missing
    assert "none.gguf" in err and "others may read it" in err and "plain text" in err and KEY not in err
    os.chmod(f, stat.S_IRUSR)
    assert "others may read" not in fails_to_start(*serve, "--api-key-file", str(f))
    err = fails_to_start(*serve, "--host", "0.0.0.0", env={"PLUMB_API_KEY": KEY})
    assert "none.gguf" in err and KEY not in err
    assert "8 to 512" in fails_to_start(*serve, env={"PLUMB_API_KEY": "short"})


# --- listening ---


def test_beyond_this_machine_only_with_a_key_or_on_purpose():
    for host in ("0.0.0.0", "::", "192.0.2.1", "2130706433"):
        err = fails_to_start(SERVE_SCRIPT, f"--host={host}")
        assert "--api-key-file" in err and "--insecure-listen" in err, err
    for flags in (["--insecure-listen"], [f"--api-key={KEY}"]):
        with script("--host=0.0.0.0", *flags) as s:
            assert s.call("/health", headers={"Host": "127.0.0.1"})[0] == 200
    for host in ("127.0.0.1", "localhost", "127.9.9.9"):
        with script(f"--host={host}", ready=False) as s:
            assert s.port
    assert "name the origins" in fails_to_start(SERVE_SCRIPT, "--cors-origin=*")


def test_cors_lists():
    with script(f"--api-key={KEY}", "--cors-origin=https://a.test, https://b.test") as s:
        for origin, status in (("https://a.test", 200), ("https://b.test", 200), ("https://c.test", 403), ("null", 403)):
            got, headers, _ = s.call("/v1/models", headers={"Origin": origin, "x-api-key": KEY})
            assert got == status and headers.get("access-control-allow-origin") == (origin if status == 200 else None)
    with script(f"--api-key={KEY}", "--cors-origin=*") as s:
        got, headers, _ = s.call("/v1/models", headers={"Origin": "https://any.test", "x-api-key": KEY})
        assert got == 200 and headers["access-control-allow-origin"] == "https://any.test" and headers["vary"] == "Origin"
        assert s.call("/v1/models", headers={"Origin": "https://any.test"})[0] == 401


# --- TLS ---


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    d = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", d / "key.pem", "-out", d / "cert.pem"],
        check=True, capture_output=True, timeout=60)
    return d


@pytest.fixture(scope="module")
def tls(certificate):
    with script(f"--tls-cert={certificate}/cert.pem", f"--tls-key={certificate}/key.pem", "--rows=4", "--ctx=200000") as s:
        assert any("ready https://" in line for line in s.lines)
        yield s


def wrap(server, certificate, **kwargs):
    ctx = ssl.create_default_context(cafile=certificate / "cert.pem")
    for name, value in kwargs.items():
        if name == "alpn":
            ctx.set_alpn_protocols(value)
        else:
            setattr(ctx, name, value)
    return ctx.wrap_socket(server.connect(), server_hostname="localhost", suppress_ragged_eofs=False)


def test_tls_serves_the_official_client(tls, certificate):
    url = f"https://127.0.0.1:{tls.port}/v1"
    verify = ssl.create_default_context(cafile=certificate / "cert.pem")
    client = openai.OpenAI(base_url=url, api_key="x", max_retries=0, http_client=httpx2.Client(verify=verify))
    r = client.chat.completions.create(model="any", messages=[{"role": "user", "content": "!say Grüße"}])
    assert r.choices[0].message.content == "Grüße"
    chunks = client.chat.completions.create(model="any", stream=True, messages=[{"role": "user", "content": "!count 500"}])
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "0123456789" * 50


def test_tls_takes_and_gives_large_bodies(tls, certificate):
    text = "é" * 2_000_000
    with wrap(tls, certificate) as c:
        c.settimeout(60 * SLOW)
        r = Reply(c)
        for _ in range(2):  # and keeps the connection
            c.sendall(request("/tokenize", {"content": text[:400000]}))
            status, headers, value = r.read()
            assert status == 200 and value["count"] == 800000 and headers["connection"] == "keep-alive"
        c.sendall(request("/detokenize", {"tokens": [195, 169] * 400000}))
        assert r.read()[2]["content"] == text[:400000]


def test_tls_ends_are_told_from_cuts(tls, certificate):
    with wrap(tls, certificate) as c:
        c.sendall(request("/health", headers={"Connection": "close"}))
        data = b""
        while x := c.recv(4096):  # raises ssl.SSLEOFError where the end is not announced
            data += x
        assert data.startswith(b"HTTP/1.1 200")
    with wrap(tls, certificate) as c:  # without a length, the end of the connection is the end of the stream
        c.sendall(request(CHAT, say("over", stream=True), version="1.0"))
        data = b""
        while x := c.recv(4096):
            data += x
        assert data.endswith(b"data: [DONE]\n\n")


def test_tls_versions_and_protocols(tls, certificate):
    with wrap(tls, certificate, alpn=["h2", "http/1.1"]) as c:
        assert c.selected_alpn_protocol() == "http/1.1" and c.version() in ("TLSv1.2", "TLSv1.3")
    with pytest.raises(ssl.SSLError):
        wrap(tls, certificate, alpn=["h2"])
    with wrap(tls, certificate, maximum_version=ssl.TLSVersion.TLSv1_2) as c:
        assert c.version() == "TLSv1.2"
    ctx = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ctx.check_hostname, ctx.verify_mode = False, ssl.CERT_NONE
    ctx.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        ctx.minimum_version, ctx.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        ctx.wrap_socket(tls.connect(), server_hostname="localhost")


def test_tls_survives_what_is_no_tls(tls, certificate):
    for data in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01", b"", b"\x00" * 500, os.urandom(300)):
        c = tls.connect()
        try:
            c.sendall(data)
            c.shutdown(socket.SHUT_WR)
            while c.recv(4096):
                pass
        except OSError:  # reset
            pass
        c.close()
    with wrap(tls, certificate) as c:
        c.sendall(request("/health"))
        assert Reply(c).read()[0] == 200


def test_tls_notices_a_client_that_goes(tls, certificate):
    for how in ("unwrap", "cut"):
        c = wrap(tls, certificate)
        c.sendall(request(CHAT, {"messages": [{"role": "user", "content": "!forever"}], "stream": True}))
        assert c.recv(10)
        raw = c.detach() if how == "cut" else None
        if raw is not None:
            os.close(raw)
        else:
            c.close()
        end = time.time() + 20 * SLOW
        while True:
            with wrap(tls, certificate) as d:
                d.sendall(request("/stats"))
                if Reply(d).read()[2]["running"] == 0:
                    break
            assert time.time() < end
            time.sleep(0.05)


def test_tls_slow_readers_pause(certificate):
    with script(f"--tls-cert={certificate}/cert.pem", f"--tls-key={certificate}/key.pem", "--ctx=40000") as s:
        with wrap(s, certificate) as c:
            c.sendall(request(CHAT, {"messages": [{"role": "user", "content": "!count 30000"}], "stream": True}))
            time.sleep(0.5)  # unread: its row pauses, and goes on
            parts = []
            while not parts or b"data: [DONE]" not in parts[-1][-40:]:
                parts.append(c.recv(65536))
                assert parts[-1]
            data = b"".join(parts).decode()
            assert "".join(re.findall(r'"delta":\{"content":"(\d)"\}', data)) == "0123456789" * 3000


def test_tls_files_must_fit(certificate, tmp_path):
    good = [f"--tls-cert={certificate}/cert.pem", f"--tls-key={certificate}/key.pem"]
    assert "--tls-key is missing" in fails_to_start(SERVE_SCRIPT, good[0])
    assert "--tls-cert is missing" in fails_to_start(SERVE_SCRIPT, good[1])
    assert "cannot be read" in fails_to_start(SERVE_SCRIPT, f"--tls-cert={tmp_path}/none", good[1])
    assert "cannot be read" in fails_to_start(SERVE_SCRIPT, good[0], f"--tls-key={tmp_path}/none")
    (tmp_path / "junk").write_text("junk")
    assert "--tls-cert" in fails_to_start(SERVE_SCRIPT, f"--tls-cert={tmp_path}/junk", good[1])
    assert "--tls-key" in fails_to_start(SERVE_SCRIPT, good[0], f"--tls-key={tmp_path}/junk")
    other = tmp_path / "other.pem"
    subprocess.run(["openssl", "genrsa", "-out", other, "2048"], check=True, capture_output=True, timeout=60)
    assert "key values mismatch" in fails_to_start(SERVE_SCRIPT, good[0], f"--tls-key={other}")
    locked = tmp_path / "locked.pem"
    subprocess.run(["openssl", "rsa", "-aes128", "-passout", "pass:abcd", "-in", other, "-out", locked], check=True,
                   capture_output=True, timeout=60)
    assert "--tls-key" in fails_to_start(SERVE_SCRIPT, good[0], f"--tls-key={locked}")


# --- no URL is fetched, no path opened ---


def test_no_url_is_ever_fetched():
    hits = []

    class Quiet(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            hits.append(self.path)
            self.send_response(404)
            self.end_headers()

        def log_message(self, *args):
            pass

    web = http.server.ThreadingHTTPServer((HOST, 0), Quiet)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    port = web.server_port
    urls = [f"http://127.0.0.1:{port}/x", f"http://localhost:{port}/x", f"http://2130706433:{port}/x", f"http://0177.0.0.1:{port}/x",
            f"http://[::ffff:127.0.0.1]:{port}/x", "file:///etc/hostname", "/etc/hostname", "../x.png", f"ftp://127.0.0.1:{port}/x",
            "data:text/html,x"]
    host = open("/etc/hostname").read().strip() or "-"
    with script() as s:
        for url in urls:
            parts = [
                {"type": "image_url", "image_url": {"url": url}}, {"type": "input_image", "image_url": url},
                {"type": "image", "source": {"type": "url", "url": url}}, {"type": "file", "file": {"file_id": url}},
                {"type": "input_audio", "input_audio": {"data": url, "format": "wav"}}, {"type": "video_url", "video_url": {"url": url}},
            ]
            for part in parts:
                for path, body in (
                    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "?"}, part]}]}),
                    ("/v1/messages", {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": [part]}]}),
                    ("/v1/responses", {"model": "m", "input": [{"role": "user", "content": [part]}], "max_output_tokens": 16}),
                ):
                    status, value = s.post(path, body)
                    assert 400 <= status < 500, (path, part, status)
                    assert host not in json.dumps(value).replace(json.dumps(url)[1:-1], ""), value
        assert text_of(s.chat_stream("!say alive")) == "alive"
    web.shutdown()
    assert hits == []


def test_names_are_no_paths():
    bad = ["../../etc/passwd", "/etc/passwd", "..%2f..%2fetc%2fpasswd", "a\0b", "x" * 10000, ".", "..", "models/../../../etc/passwd"]
    with script() as s:
        for name in bad:
            status, value = s.post(CHAT, say("x", model=name))
            assert status == 200 and value["model"] == "script"
            assert s.call("/v1/models/" + "".join(f"%{b:02x}" for b in name.encode()))[0] in (400, 404)
        for path in ("/../../../../etc/passwd", "/%2e%2e/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/static/..%2f..%2fetc/passwd",
                     "/..\\..\\etc\\passwd"):
            status, _, value = s.call(path)
            assert status in (400, 404) and "root:" not in json.dumps(value)
