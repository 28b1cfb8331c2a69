"""The server over the real engine with a scripted model: assembly, a turn in each dialect, interruption, resume, the end."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import math
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed

from duologue.clock import AsyncioRuntime
from duologue.config.pipeline import StageConfig
from duologue.config.service import DuologueConfig, ModelChoice, ServerConfig
from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.assembly import replica_factory
from duologue.engine.duplex.session.manager import DuplexSessionManager
from duologue.errors import StageFault
from duologue.metrics.meters import StageMeters
from duologue.outputs import Options
from duologue.server.assembly import build_model, engine, serve_config
from duologue.server.main import main
from duologue.server.serve import ServeError, running
from tests.integration.server.loopback import FakeEngine, Frame, Server, Talker, eventually, http, on_loop

FAST = {"recognise_s": 0.0, "think_s": 0.0, "speak_s": 0.0, "sentence_ms": 100, "sentences": 2}
LONG = {**FAST, "sentence_ms": 10_000}


def config(**options: str | float | bool) -> DuologueConfig:
    return DuologueConfig(server=ServerConfig(port=0), model=ModelChoice(plugin="scripted", options=options or FAST))


@asynccontextmanager
async def real(settings: DuologueConfig) -> AsyncIterator[Server]:
    async with running(serve_config(settings), partial(engine, settings)) as (listening, realtime):
        yield Server(FakeEngine(), listening, realtime)


def tone(seconds: float, rate_hz: int) -> str:
    count = round(seconds * rate_hz)
    samples = (round(8_000 * math.sin(2 * math.pi * 220 * n / rate_hz)) for n in range(count))
    return base64.b64encode(struct.pack(f"<{count}h", *samples)).decode()


async def post(server: Server, path: str, body: bytes) -> bytes:
    """A plain POST of JSON: the whole answer."""
    reader, writer = await asyncio.open_connection(server.listening.host, server.listening.port)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def ask(client: Talker, rate_hz: int) -> None:
    """One committed second of sound, to be answered."""
    await client.send("input_audio_buffer.append", audio=tone(1.0, rate_hz))
    await client.send("input_audio_buffer.commit")
    await client.send("response.create")


@on_loop
async def test_a_ga_turn_through_the_real_engine() -> None:
    async with real(config()) as host, host.client("/v1/realtime?model=gpt-realtime") as client:
        await client.until("session.created")
        await client.send("session.update", session={"audio": {"input": {"turn_detection": None}}})
        await client.until("session.updated")
        await ask(client, 24_000)
        response = (await client.until("response.done"))["response"]
        assert response["status"] == "completed"
        deltas = [frame for frame in client.frames if frame["type"] == "response.output_audio.delta"]
        audio = b"".join(base64.b64decode(frame["delta"]) for frame in deltas)
        assert len(audio) == 2 * 24_000 // 5  # 200 ms
        types = [frame["type"] for frame in client.frames]
        assert types.count("session.updated") == 1
        assert types.index("input_audio_buffer.committed") < types.index("response.created")


def floats(pcm16: str) -> str:
    """The same sound as 32-bit floats."""
    pcm = base64.b64decode(pcm16)
    samples = struct.unpack(f"<{len(pcm) // 2}h", pcm)
    return base64.b64encode(struct.pack(f"<{len(samples)}f", *(value / 32_768 for value in samples))).decode()


async def heard(client: Talker, audio: str, **stated: object) -> str:
    """What the model understood of one append: how loud it was and how long."""
    await client.send("input_audio_buffer.append", audio=audio, **stated)
    await client.send("input.commit")
    frame = await client.until("conversation.item.input_audio_transcription.completed")
    await client.until("response.done")
    return str(frame["transcript"])


async def resume(client: Talker, opened: Frame, last: Frame) -> None:
    """Take up the session of ``opened`` (``session.created``), behind the event ``last``."""
    await client.send(
        "session.resume",
        session_id=opened["session_id"],
        resume_token=opened["resume_token"],
        last_received_server_event_seq=last["server_event_seq"],
    )


@on_loop
async def test_field_F03_an_append_is_read_in_the_format_that_is_in_force() -> None:
    """A refused update leaves the old one, an accepted one the new one; also if nobody waited for the answer to it."""
    sound = tone(1.0, 16_000)
    async with real(config()) as host, host.client("/v1/duplex") as client:
        await client.send("session.update", session={"turn_detection": None})
        opened = await client.until("session.created")
        change = {"input_audio_format": "pcm_f32le", "instructions": "x"}
        # The model's plugin refuses this voice, and once the assistant spoke the session itself does; the model the server.
        await client.send("session.update", event_id="E", session=change | {"voice": "refused"})
        assert (await client.until("error"))["error"]["code"] == "invalid_duplex_runtime_config"
        right = await heard(client, sound)
        assert right == "utterance 6 of 1000 ms"
        for illegal, waits in itertools.product(({"model": "other"}, {"voice": "refused"}), (True, False)):
            await client.send("session.update", event_id="E", session=change | illegal)
            if waits:
                assert (await client.until("error"))["error"]["event_id"] == "E"
            assert await heard(client, sound) == right
        for waits in (True, False):
            await client.send("session.update", session={"input_audio_format": "pcm_f32le"})
            if waits:
                shown = (await client.until("session.updated"))["session"]
                assert shown["instructions"] == opened["session"]["instructions"]
            assert await heard(client, floats(sound)) == right
            await client.send("session.update", session={"input_audio_format": "pcm16"})
            assert await heard(client, sound) == right
        assert [frame["type"] for frame in client.frames].count("error") == 5


@on_loop
async def test_field_F03_an_append_that_states_its_format_is_read_in_it() -> None:
    sound = tone(1.0, 16_000)
    async with real(config()) as host, host.client("/v1/duplex") as client:
        await client.send("session.update", session={"turn_detection": None})
        await client.until("session.created")
        right = await heard(client, sound)
        stated: dict[str, object] = {"format": "pcm16", "sample_rate_hz": 16_000}
        await client.send("session.update", session={"input_audio_format": "pcm_f32le"})
        assert await heard(client, sound, **stated) == right
        assert await heard(client, floats(sound), format="pcm_f32le", sample_rate_hz=16_000) == right
        assert await heard(client, sound, **stated) == right


@on_loop
async def test_field_F03_an_append_that_states_its_format_is_read_in_it_behind_a_change_that_waits() -> None:
    """A long append is decoded piece by piece, and what was sent behind it waits for that."""
    sound = tone(1.0, 16_000)
    long = base64.b64encode(bytes(2 * 16_000 * 20)).decode()
    stated: dict[str, object] = {"format": "pcm16", "sample_rate_hz": 16_000}
    async with real(config()) as host, host.client("/v1/duplex") as client:
        await client.send("session.update", session={"turn_detection": None})
        await client.until("session.created")
        right = await heard(client, sound)
        for behind in ({"input_audio_format": "pcm_f32le"}, {"input_audio_format": "pcm_f32le", "instructions": "x"}):
            await client.send("input_audio_buffer.append", audio=long, **stated)
            await client.send("input_audio_buffer.clear")
            await client.send("session.update", session=behind)
            assert await heard(client, sound, **stated) == right
        assert not [frame for frame in client.frames if frame["type"] == "error"]


@on_loop
async def test_behaviour_20_resume_keeps_the_negotiated_format() -> None:
    sound = tone(1.0, 16_000)
    async with real(config()) as host:
        async with host.client("/v1/duplex") as first:
            update = {"turn_detection": None, "input_audio_format": "pcm_f32le"}
            await first.send("session.update", session=update)
            opened = await first.until("session.created")
            right = await heard(first, floats(sound))
            last = await first.until("rate_limits.updated")
            first.socket.transport.abort()
        await eventually(lambda: host.realtime.connections == 0)
        async with host.client("/v1/duplex?resume=1") as second:
            await resume(second, opened, last)
            await second.until("session.resumed")
            assert await heard(second, floats(sound)) == right
            assert await heard(second, sound, format="pcm16", sample_rate_hz=16_000) == right


@on_loop
async def test_a_duplex_session_is_cancelled_resumed_and_closed() -> None:
    async with real(config(**LONG)) as host:
        async with host.client("/v1/duplex") as first:
            await first.send("session.update", session={"turn_detection": None})
            opened = await first.until("session.created")
            await ask(first, 16_000)
            await first.until("response.output_audio.delta")
            await first.send("response.cancel")
            last = await first.until("response.done")
            assert last["response"]["status_details"]["reason"] == "client_cancelled"
            last = await first.until("rate_limits.updated")
            first.socket.transport.abort()
        await eventually(lambda: host.realtime.connections == 0)
        async with host.client("/v1/duplex?resume=1") as second:
            await resume(second, opened, last)
            assert (await second.next())["type"] == "session.resumed"
            await second.send("session.close")
            assert await second.closed() == 1000
            # Nothing of the cancelled answer, however much of it had been made, and the slot is free.
            assert [frame["type"] for frame in second.frames[1:]] == ["session.closed"]
        shown = json.loads((await http(host, "/health"))[1])
        assert (shown["sessions"], shown["slots"]["used"]) == (0, 0)


@on_loop
async def test_a_stop_during_an_answer_ends_the_answer_then_the_session() -> None:
    async with real(config(**LONG)) as host, host.client("/v1/duplex?model=scripted") as client:
        await client.send("session.update", session={"turn_detection": None})
        await ask(client, 16_000)
        await client.until("response.output_audio.delta")
        assert await host.realtime.drain(10.0)
        assert await client.closed() == 1001
        types = [frame["type"] for frame in client.frames]
        assert types[-1] == "session.closed"
        assert types.count("response.done") == types.count("response.created") == 1


@on_loop
async def test_decision_28_the_fifth_session_is_refused_and_a_freed_slot_is_free_at_once() -> None:
    async with real(config()) as host:
        clients = []
        for _ in range(4):
            client = host.client()
            clients.append((client, await client.__aenter__()))
        for _, talker in clients:
            await talker.until("session.created")
        async with host.client() as fifth:
            assert (await fifth.next())["error"]["code"] == "resource_exhausted"
        await clients[0][0].__aexit__(None, None, None)
        await eventually(lambda: len(host.realtime.hub.sessions) == 3)
        async with host.client() as sixth:
            assert (await sixth.next())["type"] == "session.created"
        for client, _ in clients[1:]:
            await client.__aexit__(None, None, None)


@on_loop
async def test_a_fault_of_the_engine_ends_everything_in_order_and_health_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = asyncio.Event()

    async def fail(manager: object, stopping: object) -> None:
        await broken.wait()
        raise ArithmeticError("a background task")

    monkeypatch.setattr(DuplexSessionManager, "reaper_loop", fail)
    async with real(config(**LONG)) as host:
        assert (await http(host, "/health"))[0] == 200
        async with host.client("/v1/realtime?model=gpt-realtime") as client:
            await client.until("session.created")
            await client.send("session.update", session={"audio": {"input": {"turn_detection": None}}})
            await client.until("session.updated")
            await ask(client, 24_000)
            await client.until("response.output_audio.delta")
            speech = json.dumps({"model": "scripted", "input": "One. Two. Three.", "voice": "alloy"}).encode()
            other = asyncio.ensure_future(post(host, "/v1/audio/speech", speech))
            broken.set()
            response = (await client.until("response.done"))["response"]
            assert response["status"] != "completed"
            error = await client.until("error")
            assert error["error"]["code"] == "engine_dead"
            with pytest.raises(ConnectionClosed) as closed:
                await client.until("nothing more")
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1011
        await asyncio.wait_for(other, 10)
        status, body = await http(host, "/health")
        assert (status, json.loads(body)["status"]) == (503, "dead")
        assert (await http(host, "/ready"))[0] == 503


@on_loop
async def test_the_resident_family_is_served_too() -> None:
    settings = config(family="resident", unit_s=0.0)
    async with real(settings) as host, host.client("/v1/duplex") as client:
        await client.send("session.update", session={"turn_detection": None, "extra_body": {"auto_response": True}})
        await client.until("session.updated")
        await client.send("input_audio_buffer.append", audio=tone(1.0, 16_000))
        await client.send("input_audio_buffer.append", audio=base64.b64encode(bytes(32_000)).decode())
        await client.until("response.speak")
        await client.until("response.output_audio.delta")


def test_what_cannot_be_built_says_what_to_change() -> None:
    async def build(settings: DuologueConfig) -> None:
        build_model(settings, AsyncioRuntime())

    for choice, about in (
        (ModelChoice(plugin="scripted", options={"famly": "x"}), "famly"),
        (ModelChoice(plugin="scripted", options={"family": "x"}), "family"),
        (ModelChoice(plugin="scripted", options={"sentences": "many"}), "sentences"),
        (ModelChoice(plugin="cascade", options={"nothing": 1}), "nothing"),
        (ModelChoice(plugin="nowhere.to:be_found"), "nowhere"),
        (ModelChoice(plugin="json:loads"), "json:loads"),
    ):
        with pytest.raises(ServeError, match=about):
            asyncio.run(build(msgspec.structs.replace(config(), model=choice)))


@pytest.mark.parametrize(
    ("factory", "options", "said"),
    [
        ("nowhere.to:BeFound", {}, "ModuleNotFoundError: No module named 'nowhere'"),
        ("json:Nothing", {}, "module 'json' has no 'Nothing'"),
        ("duologue.models.native.stage:NativeStage", {"sed": 1}, "unexpected keyword argument 'sed'"),
    ],
)
@on_loop
async def test_stage_code_that_cannot_be_made_here_is_told_as_by_a_worker(
    factory: str, options: Options, said: str
) -> None:
    stage = StageConfig(name="repeat", factory=factory, backend="inproc", options=options)
    with pytest.raises(StageFault, match=f"^repeat-0 could not start its stage: .*{said}"):
        replica_factory(stage, AsyncioRuntime())(0)


def test_the_program_refuses_what_it_cannot_use(capsys: pytest.CaptureFixture[str], tmp_path: object) -> None:
    assert main(["a", "b"]) == 2
    assert main(["--help"]) == 2
    assert main([f"{tmp_path}/missing.yaml"]) == 1
    assert "missing.yaml" in capsys.readouterr().err


@on_loop
async def test_what_stages_cost_is_at_metrics() -> None:
    meters = StageMeters()
    settings = config()
    serving = msgspec.structs.replace(serve_config(settings), collectors=(meters,))
    async with running(serving, partial(engine, settings, meters=meters)) as (listening, realtime):
        host = Server(FakeEngine(), listening, realtime)
        async with host.client("/v1/realtime?model=gpt-realtime") as client:
            await client.until("session.created")
            await client.send("session.update", session={"audio": {"input": {"turn_detection": None}}})
            await client.until("session.updated")
            await ask(client, 24_000)
            await client.until("response.done")
        status, body = await http(host, "/metrics")
    text = body.decode()
    assert status == 200
    assert 'duologue_stage_requests_total{ended="finished",stage="stage2"} 1.0' in text
    assert 'duologue_stage_audio_seconds_total{stage="stage2"} 0.2' in text


@on_loop
async def test_a_client_in_a_loop_is_told_to_wait_and_shows_at_metrics() -> None:
    settings = msgspec.structs.replace(config(), sessions=DuplexSessionRuntimeConfig(turn_burst=3, turns_per_minute=1))
    async with real(settings) as host:
        async with host.client("/v1/realtime?model=gpt-realtime") as client:
            await client.until("session.created")
            await client.send("session.update", session={"audio": {"input": {"turn_detection": None}}})
            await client.until("session.updated")
            await ask(client, 24_000)
            await client.until("response.done")
            await client.send("response.create", event_id="last")
            await client.until("response.done")
            await client.send("response.create", event_id="beyond")
            refused = await client.until("error")
            await client.send("response.cancel", event_id="cancel")
            assert (await client.until("error"))["error"]["event_id"] == "cancel", "the session lives"
        status, body = await http(host, "/metrics")
    assert (refused["error"]["code"], refused["error"]["event_id"]) == ("rate_limited", "beyond")
    assert refused["error"]["type"] == "rate_limit_error"
    assert (status, 'duologue_errors_total{code="rate_limited"} 1.0' in body.decode()) == (200, True)
