"""Who may connect, and what a URL asks for."""

from __future__ import annotations

import pytest

from duologue.errors import AdmissionFault, ErrorCode
from duologue.server.hello import Access, read_hello
from duologue.server.serve import ServeConfig, ServeError, check
from duologue.server.token import ResumeToken
from tests.unit.server.driver import entropy_source


@pytest.mark.parametrize(
    ("path", "query", "dialect", "opens"),
    [
        ("/v1/realtime", "", "ga", True),
        ("/v1/realtime", "model=m", "ga", True),
        ("/v1/realtime", "duplex=0&model=m", "ga", True),
        ("/v1/realtime", "duplex=1", "duplex", False),
        ("/v1/realtime", "duplex=true&model=m", "duplex", True),
        ("/v1/realtime", "duplex=1&model=m&autostart=0", "duplex", False),
        ("/v1/realtime", "duplex=1&model=m&resume=1", "duplex", False),
        ("/v1/realtime", "duplex=1&autostart=1", "duplex", True),
        ("/v1/duplex", "", "duplex", False),
        ("/v1/duplex/", "model=m", "duplex", True),
        ("/v1/duplex", "duplex=0", "ga", True),
        ("/v1/realtime", "duplex=1&%zz&&=&model", "duplex", False),
    ],
)
def test_what_a_url_asks_for(path: str, query: str, dialect: str, opens: bool) -> None:
    hello = read_hello(path, query)
    assert (hello.dialect, hello.opens) == (dialect, opens)


def test_without_keys_anybody_may() -> None:
    access = Access()
    assert (access.keyed, access.admit(None, [], None)) == (False, "")


@pytest.mark.parametrize(
    ("authorization", "protocols"),
    [
        ("Bearer one", []),
        ("bearer  two ", []),
        (None, ["realtime", "openai-insecure-api-key.two"]),
        ("Basic x", ["openai-insecure-api-key.one"]),
    ],
)
def test_a_key_is_taken_from_the_header_or_the_subprotocol(authorization: str | None, protocols: list[str]) -> None:
    assert Access(["one", "two"]).admit(authorization, protocols, None)


def test_keys_have_ids_that_do_not_show_them() -> None:
    access = Access(["one", "two"])
    first, second = access.admit("Bearer one", [], None), access.admit("Bearer two", [], None)
    assert first != second
    assert "one" not in first


@pytest.mark.parametrize("authorization", [None, "", "Bearer", "Bearer ", "Bearer three", "one", "Bearer \ud800"])
def test_a_wrong_key_is_refused(authorization: str | None) -> None:
    with pytest.raises(AdmissionFault) as caught:
        Access(["one"]).admit(authorization, ["realtime"], None)
    assert caught.value.code is ErrorCode.INVALID_API_KEY


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://localhost:3000", True),
        ("http://127.0.0.1:80", True),
        ("http://[::1]:5173", True),
        ("http://localhost", True),
        ("http://localhost.evil.test:80", False),
        ("http://localhost:80@evil.test", False),
        ("http://evil.test#http://localhost:1", False),
        ("https://evil.test", False),
        ("null", False),
        ("http://[::1", False),
    ],
)
def test_decision_27_only_local_pages_may_connect_by_default(origin: str, allowed: bool) -> None:
    assert Access().allows_origin(origin) is allowed


def test_other_pages_may_when_they_are_listed() -> None:
    access = Access(origins=["https://app.test"])
    assert access.allows_origin("https://app.test")
    assert not access.allows_origin("http://localhost:3000")
    assert Access(origins=["*"]).allows_origin("https://any.test")
    with pytest.raises(AdmissionFault) as caught:
        access.admit(None, [], "https://other.test")
    assert caught.value.code is ErrorCode.ORIGIN_NOT_ALLOWED


def test_behaviour_20_resume_tokens_rotate_and_are_not_kept() -> None:
    token = ResumeToken(entropy_source())
    first = token.rotate()
    assert len(first) == 43
    assert token.matches(first)
    second = token.rotate()
    assert token.matches(second)
    assert not token.matches(first)
    assert not token.matches("")
    assert not token.matches("\ud800")
    kept = [str(getattr(token, name)) for name in dir(token) if not name.startswith("__")]
    assert not [text for text in kept if first in text or second in text]


@pytest.mark.parametrize(
    ("config", "about"),
    [
        (ServeConfig(host="0.0.0.0"), "api_keys"),
        (ServeConfig(host="::"), "api_keys"),
        (ServeConfig(host="speech.example.test"), "api_keys"),
        (ServeConfig(api_keys=("",)), "empty key"),
        (ServeConfig(tls_certificate="cert.pem"), "tls_key"),
        (ServeConfig(max_frame_bytes=1_000), "max_frame_bytes"),
    ],
)
def test_decision_27_an_unsafe_configuration_does_not_start(config: ServeConfig, about: str) -> None:
    with pytest.raises(ServeError, match=about):
        check(config)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.8.8"])
def test_loopback_needs_no_key(host: str) -> None:
    check(ServeConfig(host=host))


def test_another_interface_with_a_key_is_fine() -> None:
    check(ServeConfig(host="0.0.0.0", api_keys=("k",)))
