"""The session's ears: input decoding, speech detection and turn-end judgement, and the settings these follow.

Rules kept here:

* commands reach the session in the order in which they arrived, except those that stop something: these go first, and
  drop the input in front of them that they would have made pointless;
* while a command waits in the session for the input before it, what comes after it waits here, not decoded: it may be a
  change of the format; but not what only reports;
* an append longer than a slice is decoded slice by slice with other sessions' work in between, and reaches the session
  as several appends: its position in the order does not change, and it is accepted or refused as one;
* what waits behind it is bounded, and what goes beyond is refused at once: a socket brings more than is decoded;
* a commit takes what the filters still hold back; a clear forgets it;
* every ``Detect`` and ``ClassifyTurn`` is answered exactly once, also when the detector fails or is missing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from duologue.audio import AudioDataError, AudioFormat, AudioFormatError, DualDecoder
from duologue.config.session import SessionConfig
from duologue.engine.duplex.commands import (
    AckPlayback,
    AppendAudio,
    BargeIn,
    CancelInput,
    CancelResponse,
    ClearAudio,
    ClearOutput,
    CloseSession,
    CommitAudio,
    CreateItem,
    CreateResponse,
    DuplexCommand,
    Heartbeat,
    SignalTurn,
    UpdateSession,
)
from duologue.engine.duplex.core.effects import ApplyConfig, ClassifyTurn, Detect, JudgeConfig
from duologue.engine.duplex.core.items import (
    AudioAppended,
    CommandReceived,
    CommandRefused,
    ConfigJudged,
    DetectorFailed,
    SpeechScored,
    Touched,
    TurnClassified,
)
from duologue.engine.duplex.session.context import DuplexSessionContext
from duologue.engine.duplex.session.detection import DetectionService, DetectionStream
from duologue.engine.duplex.session.emitter import SessionEmitter
from duologue.engine.duplex.session.model_channel import ModelChannel, PluginFault
from duologue.errors import DuologueError, ErrorCode, StageFault
from duologue.log import init_logger

logger = init_logger(__name__)

SLICE_BYTES = 96_000
"""How much of an append is decoded in one go: about two seconds of PCM16 at 24 kHz."""

_COMMAND_BYTES = 4096  # what a command counts as that waits, beside its audio and texts

_URGENT = (BargeIn, CancelInput, CancelResponse, ClearOutput, CloseSession, SignalTurn)
_REPORTS = (AckPlayback, Heartbeat)
_FORGETS_INPUT = (BargeIn, CancelInput)


class SessionControl:
    """One session's front end (see module docstring)."""

    def __init__(
        self,
        ctx: DuplexSessionContext,
        out: SessionEmitter,
        model: ModelChannel,
        *,
        wait_for_append_tail: Callable[[], bool],
        detection: DetectionService | None = None,
        max_waiting_bytes: int = 16 * 1024 * 1024,
    ) -> None:
        self._ctx = ctx
        self.out = out
        self.model = model
        self.wait_for_append_tail = wait_for_append_tail
        self._detection = detection
        self._stream: DetectionStream | None = None
        self._model_rate_hz = ctx.plugin.capabilities.input_rate_hz
        self._format = ctx.session.config.input_format
        self._decoder = DualDecoder(self._format, self._model_rate_hz)
        self._waiting: deque[DuplexCommand] = deque()
        self._waiting_bytes = 0
        self._rest = 0  # how many at the head are the rest of one append, which was accepted
        self._max_waiting_bytes = max_waiting_bytes
        self._refusing = False
        self._scheduled = False
        self._closed = False
        self.held = False  # whether something waits for the session

    # Commands

    def receive(self, command: DuplexCommand) -> None:
        """Take one client command."""
        if (self._waiting or self._ctx.session.holding) and self._must_wait(command):
            self._wait(command)
        else:
            self._take(command)

    def _must_wait(self, command: DuplexCommand) -> bool:
        if isinstance(command, _URGENT) or (isinstance(command, _REPORTS) and (self.held or not self._waiting)):
            return False
        if self._waiting:
            return True
        self.held = not _waits_in_session(command)
        return self.held

    def go_on(self) -> None:
        """Take what was held for the sake of a command that has been answered now, if it has."""
        if not self._ctx.session.holding:
            self.held = False
            self._continue()

    def _wait(self, command: DuplexCommand) -> None:
        weight = _weight(command)
        if self._waiting_bytes + weight <= self._max_waiting_bytes:
            self._waiting.append(command)
            self._waiting_bytes += weight
            self._refusing = False
            self._ctx.services.apply(Touched(command=command))  # whoever sends is there, however long this waits
            return
        self._ctx.services.apply(Touched(command=command))
        # Once per episode, as in the session: a client that floods is not flooded back.
        if self._refusing and command.event_id is None:
            return
        self._refusing = True
        self._ctx.services.apply(
            CommandRefused(
                code=ErrorCode.INPUT_BACKPRESSURE,
                message=f"{self._waiting_bytes} bytes of events wait to be decoded and {self._max_waiting_bytes} may; this "
                "event was not accepted. Send audio no faster than it is spoken, then send it again.",
                event_id=command.event_id,
            )
        )

    def _take(self, command: DuplexCommand) -> None:
        match command:
            case AppendAudio():
                self._append(command)
            case CommitAudio():
                self._appended(self._decoder.flush())
                self._ctx.services.apply(CommandReceived(command=command))
            case ClearAudio():
                self._decoder.reset()
                self._ctx.services.apply(CommandReceived(command=command))
            case CreateResponse():
                self._ctx.services.apply(self._judged(command))
            case _:
                if isinstance(command, _FORGETS_INPUT):
                    self._forget_input()
                self._ctx.services.apply(CommandReceived(command=command))

    def _forget_input(self) -> None:
        self._decoder.reset()
        kept = [command for command in self._waiting if not isinstance(command, AppendAudio | CommitAudio)]
        self._waiting = deque(kept)
        self._rest = 0
        self._waiting_bytes = sum(map(_weight, kept))

    def _append(self, command: AppendAudio) -> None:
        audio = command.audio
        if len(audio) <= SLICE_BYTES:
            self._decode(command, audio)
            return
        pieces = [audio[start : start + SLICE_BYTES] for start in range(0, len(audio), SLICE_BYTES)]
        self._decode(command, pieces[0], following_bytes=self._decoded_bytes(len(audio) - len(pieces[0])))
        if self._ctx.session.refuses_input or self._ctx.run.closing:
            return  # refused whole; or it ended the session, which wants nothing more of it
        later = [
            AppendAudio(
                audio=piece,
                event_id=command.event_id,
                overlap_hint=command.overlap_hint,
                force_listen=command.force_listen,
                force_barge_in=False,
                is_speech=command.is_speech,
            )
            for piece in pieces[1:]
        ]
        self._waiting.extendleft(reversed(later))
        self._rest = len(later)
        self._waiting_bytes += sum(map(_weight, later))
        self._schedule()

    def _decoded_bytes(self, size: int) -> int:
        """About what ``size`` bytes of the client's become."""
        samples = size // self._format.bytes_per_sample
        return samples * self._model_rate_hz // self._format.rate_hz * 2

    def _schedule(self) -> None:
        if not self._scheduled and self._waiting and not self._closed:
            self._scheduled = True
            self._ctx.runtime.call_at(self._ctx.runtime.now(), self._continue)

    def _continue(self) -> None:
        self._scheduled = False
        while self._waiting and not self._closed:
            if self._ctx.session.holding and not _waits_in_session(self._waiting[0]):
                self.held = True
                return
            command = self._waiting.popleft()
            self._rest = max(0, self._rest - 1)
            self._waiting_bytes -= _weight(command)
            self._take(command)
            if isinstance(command, AppendAudio):
                break
        self._schedule()

    def _decode(self, command: AppendAudio, audio: bytes, *, following_bytes: int = 0) -> None:
        try:
            pcm, detector_pcm = self._decoder.decode(audio)
        except (AudioDataError, AudioFormatError) as exc:
            self._ctx.services.apply(
                CommandRefused(code=ErrorCode.BAD_AUDIO, message=str(exc), event_id=command.event_id, param="audio")
            )
            return
        self._ctx.services.apply(
            AudioAppended(
                pcm=pcm,
                detector_pcm=None if detector_pcm is pcm else detector_pcm,
                event_id=command.event_id,
                overlap_hint=command.overlap_hint,
                force_listen=command.force_listen,
                force_barge_in=command.force_barge_in,
                is_speech=command.is_speech,
                following_bytes=following_bytes,
            )
        )

    def _appended(self, decoded: tuple[bytes, bytes]) -> None:
        pcm, detector_pcm = decoded
        if pcm or detector_pcm:
            same = detector_pcm is pcm
            self._ctx.services.apply(AudioAppended(pcm=pcm, detector_pcm=None if same else detector_pcm))

    @property
    def waiting_commands(self) -> int:
        """Commands that wait for a long append in front of them."""
        return len(self._waiting)

    # Detection

    def detect(self, effect: Detect) -> None:
        """Score speech."""
        number = effect.number
        if self._detection is None:
            self._ctx.services.apply(
                DetectorFailed(number=number, kind="speech", message="No speech detector is configured.")
            )
            return
        if self._stream is None:
            self._stream = self._detection.open_stream()

        def answer(verdict: tuple[float, ...] | Exception) -> None:
            if isinstance(verdict, Exception):
                self._ctx.services.apply(DetectorFailed(number=number, kind="speech", message=_why(verdict)))
            else:
                self._ctx.services.apply(SpeechScored(number=number, probabilities=verdict))

        self._stream.score(effect.pcm, reset=effect.reset, answer=answer)

    def classify(self, effect: ClassifyTurn) -> None:
        """Judge whether a turn is complete."""
        number = effect.number
        if self._detection is None:
            self._ctx.services.apply(
                DetectorFailed(number=number, kind="turn_end", message="No turn-end classifier is configured.")
            )
            return

        def answer(verdict: float | Exception) -> None:
            if self._closed:
                return
            if isinstance(verdict, Exception):
                self._ctx.services.apply(DetectorFailed(number=number, kind="turn_end", message=_why(verdict)))
            else:
                self._ctx.services.apply(TurnClassified(number=number, probability=verdict))

        self._detection.classify_turn(effect.pcm, answer)

    # Settings

    def judge(self, effect: JudgeConfig) -> None:
        """May the session change to this configuration?"""
        fault = self._refusal(effect.config)
        if fault is None:
            verdict = ConfigJudged(number=effect.number)
        else:
            verdict = ConfigJudged(number=effect.number, code=fault.code, message=fault.message, param=fault.param)
        self._ctx.services.apply(verdict)

    def _judged(self, command: CreateResponse) -> CommandReceived | CommandRefused:
        """The command, or why the model cannot answer with the settings that it has of its own."""
        config = self._ctx.session.settings_of(command.options)
        fault = self._refusal(config) if config is not None else None
        if fault is None:
            return CommandReceived(command=command)
        param = f"response.{fault.param.removeprefix('session.')}" if fault.param is not None else None
        return CommandRefused(code=fault.code, message=fault.message, event_id=command.event_id, param=param)

    def _refusal(self, config: SessionConfig) -> DuologueError | None:
        try:
            self._ctx.plugin.validate_config(config)
        except DuologueError as exc:
            return exc
        except Exception as exc:
            self._ctx.services.plugin_failed("validate_config", exc)
            return StageFault(ErrorCode.RUNTIME_PLUGIN_FAILED, "The model plugin could not judge the settings.")
        return None

    def configure(self, effect: ApplyConfig) -> None:
        """A configuration is in force."""
        self._set_format(effect.config)
        try:
            self.model.configure(effect.config, effect.generation)
        except PluginFault as fault:
            self._ctx.services.plugin_failed(fault.hook, fault.__cause__ or fault)
        except StageFault:
            # A stage has no live replica now; the next append asks again and fails with that reason.
            logger.warning("Settings not applied to the stages yet", extra={"session_id": self._ctx.session_id})

    def _set_format(self, config: SessionConfig) -> None:
        if config.input_format == self._format:
            return
        self._appended(self._decoder.flush())
        self._format = config.input_format
        self._decoder = DualDecoder(self._format, self._model_rate_hz)

    @property
    def waiting_bytes(self) -> int:
        """What the commands that wait to be decoded count as."""
        return self._waiting_bytes

    @property
    def input_format(self) -> AudioFormat:
        """The format in which appends are read."""
        return self._format

    def stop_input(self) -> tuple[DuplexCommand, ...]:
        """The session is closing: what still waits is not wanted. Returns whatever of it has to be answered."""
        self.held = False
        waiting = list(self._waiting)[self._rest :]
        unanswered = tuple(
            command for command in waiting if command.event_id is not None or not isinstance(command, AppendAudio)
        )
        self._waiting.clear()
        self._rest = 0
        self._waiting_bytes = 0
        return unanswered

    def close(self) -> None:
        """The session is over."""
        self._closed = True
        self.stop_input()
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def _waits_in_session(command: DuplexCommand) -> bool:
    """Whether the session itself makes it wait for the input before it."""
    if isinstance(command, CreateItem):
        return command.item.output is not None
    return isinstance(command, CommitAudio | UpdateSession)


def _weight(command: DuplexCommand) -> int:
    """What a command that waits counts as."""
    if isinstance(command, AppendAudio):
        return _COMMAND_BYTES + len(command.audio)
    texts = command.item.texts if isinstance(command, CreateItem) else ()
    return _COMMAND_BYTES + sum(map(len, texts))


def _why(exc: Exception) -> str:
    return f"Detection failed ({type(exc).__name__})."
