"""One example of every message. Their encoded forms are the golden files, which decode for ever."""

from shared.protocol.batch import BatchDescriptor, ContinuingEntry, FirstEntry, Waiting
from shared.protocol.inbox import (
    Ended,
    EngineDraining,
    EngineJoined,
    EngineLeft,
    Output,
    Reassigned,
    Reported,
    Returned,
    Submitted,
    Tick,
)
from shared.protocol.request import GenerationRequest, Rendering, SamplingParams
from shared.protocol.result import (
    EngineReport,
    EngineStatus,
    GatewayStatus,
    HeldSequence,
    IterationRecord,
    IterationResult,
    Member,
    Phase,
    SequenceOutput,
)
from shared.protocol.settings import SettingsChanged
from shared.protocol.token import EventMessage, FinishReason, State, StateEvent, TokenEntry, TokenEvent
from shared.protocol.wire import Message, encode

LARGEST_SEED = 2**63 - 1

SAMPLING = SamplingParams(
    max_new_tokens=16,
    temperature=0.7,
    top_p=0.9,
    top_k=40,
    min_p=0.05,
    seed=LARGEST_SEED,
    sample=1,
    presence_penalty=0.5,
    frequency_penalty=-0.5,
    repetition_penalty=1.1,
    logit_bias={7: -100.0},
    min_tokens=2,
    stop_token_ids=(3, 4),
    ignore_eos=True,
    logprobs=2,
    prompt_logprobs=True,
)
REQUEST = GenerationRequest(
    id="cmpl-1.1",
    group="cmpl-1",
    choice=1,
    n_choices=2,
    prompt_index=0,
    n_prompt=3,
    sampling=SAMPLING,
    rendering=Rendering(
        route="completions",
        created=1_700_000_000,
        stream=True,
        include_usage=True,
        stop=("\n\n", "Ünd"),
        echo=True,
        logprobs=2,
        user="someone",
    ),
    owner="team-a",
    priority=-1,
    on_disconnect="finish",
    resume_seconds=30.0,
    timeout_seconds=60.0,
    fault="decode:1=raise",
)
STATUS = EngineStatus(
    id="engine-0.ab", name="engine-0", n_slots=4096, max_model_len=2048, stages=2, max_batch_size=8
)
RECORD = IterationRecord(
    number=9,
    engine="engine-0",
    members=(Member(id="cmpl-1.1", phase=Phase.PREFILL, tokens=3),),
    kv_slots_reserved=19,
    kv_slots_used=3,
    batches_in_flight=1,
    started=1_700_000_000.5,
    duration_seconds=0.25,
    waiting=(Waiting(id="cmpl-2", reason="kv_slots"),),
    waiting_total=40,
    heard="1-0",
)
ENTRY = TokenEntry(token=5, logprob=-0.25, top=((5, -0.25), (6, -1.5)), prompt=(TokenEntry(token=4),))

EXAMPLES: dict[str, Message] = {
    "request": REQUEST,
    "batch": BatchDescriptor(
        iteration=9,
        fence="1:f",
        releases=("cmpl-0",),
        entries=(
            FirstEntry(
                id="cmpl-1.1",
                attempt=1,
                group="cmpl-1",
                prompt_index=0,
                tokens=(1, 2, 3, 5),
                n_prompt=3,
                reserved_slots=19,
                sampling=SAMPLING,
            ),
            ContinuingEntry(id="cmpl-2", attempt=0, last_token=5, position=7, index=4),
        ),
        n_reserved=26,
        batches_in_flight=1,
        waiting=(Waiting(id="cmpl-3", reason="kv_slots"),),
        waiting_total=1,
        heard="5-1",
    ),
    "result": IterationResult(
        engine="engine-0.ab",
        iteration=9,
        outputs=(
            SequenceOutput(
                id="cmpl-1.1",
                attempt=1,
                index=1,
                token=5,
                entry=encode(ENTRY).decode(),
                finish_reason=FinishReason.STOP.value,
            ),
            SequenceOutput(id="cmpl-2", attempt=0, index=4, code="engine_failed", message="why"),
        ),
        record=encode(RECORD).decode(),
    ),
    "iteration": RECORD,
    "engine": STATUS,
    "gateway": GatewayStatus(id="gateway-0.cd", url="http://127.0.0.1:8000"),
    "report": EngineReport(
        fence="1:f",
        status=STATUS,
        last_iteration=9,
        held=(HeldSequence(id="cmpl-1.1", attempt=1, n_kv=4, reserved_slots=19),),
    ),
    "token_entry": ENTRY,
    "events": EventMessage(
        events=(
            TokenEvent(id="cmpl-1.1", index=1, entry=encode(ENTRY).decode()),
            StateEvent(id="cmpl-1.1", state=State.COMPLETED, attempt=1, n_tokens=2, finish_reason="stop"),
        )
    ),
    "submit": Submitted(id="cmpl-1.1", arrival=12, request=encode(REQUEST).decode()),
    "end": Ended(id="cmpl-1.1"),
    "reassigned": Reassigned(id="cmpl-1.1", attempt=2),
    "returned": Returned(
        engine="engine-0.ab",
        iteration=9,
        outputs=(Output(id="cmpl-1.1", attempt=1, accepted=True, index=1, token=5, ended=True),),
    ),
    "engine_joined": EngineJoined(status=STATUS),
    "engine_draining": EngineDraining(engine="engine-0.ab"),
    "engine_left": EngineLeft(engine="engine-0.ab"),
    "reported": Reported(engine="engine-0.ab", report="{}"),
    "tick": Tick(now=1_700_000_000.5),
    "settings": SettingsChanged(fields=("max_batch_size", "8", "queue_timeout", "null")),
}
