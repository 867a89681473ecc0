"""The only wiring: every "auto" is resolved here, once, into a frozen EngineConfig; and the engine's parts are put together.

No torch is imported here, so the HTTP process stays small; the backend is made in the engine's process by `FACTORY`.
"""

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path

from paceline.checkpoint.prepare import cache_folder, prepare
from paceline.checkpoint.pull import KNOWN, SHIPPED, SHIPPED_DRAFTERS, Progress, pull, resolve
from paceline.core.config import MAX_DRAFT_TOKENS, MAX_STATE_CHECKPOINTS, PAGE_TOKENS, EngineConfig
from paceline.core.errors import CheckpointError, ConfigError
from paceline.core.messages import Event
from paceline.core.registry import load_object
from paceline.drafters import DRAFTERS, WEIGHTS_FROM
from paceline.drafters.base import WeightsFrom
from paceline.engine.loop import Engine
from paceline.engine.watch import Stated
from paceline.memory.layout import context_pages
from paceline.quant import WEIGHT_CODECS
from paceline.text.shortlist import RANKING_FILE, rank_tokens, read_ranking, required_ids
from paceline.text.stream import TextStream
from paceline.text.template import ChatTemplate
from paceline.text.tokenizer import Tokenizer

__all__ = [
    "DEFAULT_MODEL",
    "DRAFTERS",
    "FACTORY",
    "WEIGHT_CODECS",
    "EngineOptions",
    "Stated",
    "TextStream",
    "cache_folder",
    "configure",
    "fetch_known",
    "local_engine",
    "open_text",
]

FACTORY = "paceline.runner.backend:make_backend"
DEFAULT_MODEL = "embedded"
DEFAULT_DRAFTER = "ngram"
DEFAULT_CONTEXT = 8192
DEFAULT_DRAFT_TOKENS = 7
# With 8 places, conversations of 30 turns that grow to 128k tokens find at least 95 % of what they share with earlier ones.
DEFAULT_STATE_CHECKPOINTS = 8
# A shortlist that names no size holds this part of the vocabulary: see docs/shortlist.md.
DEFAULT_SHORTLIST = 0.5
# Raised when the way weights are converted changes: converted files of another layout are not read.
WEIGHTS_LAYOUT = 2


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What a person may set; None or "auto" leaves the choice to `configure`. Lengths in tokens.

    `draft_head` is "full", "shortlist" or "shortlist:N" with N tokens.
    """

    model: str = DEFAULT_MODEL
    weights: str = "auto"
    drafter: str = "auto"
    drafter_path: str | None = None
    draft_tokens: int | None = None
    draft_head: str = "full"
    max_concurrency: int = 4
    max_context: int | None = None
    kv_capacity: int | None = None
    admission: str = "on-demand"
    prefix_cache: bool = True
    state_checkpoints: int = DEFAULT_STATE_CHECKPOINTS
    prefill_chunk: int = 512
    threads: int | None = None
    log_stats_interval_s: float = 5.0


def configure(
    options: EngineOptions, progress: Progress | None = None, say: Callable[[str], None] = print
) -> EngineConfig:
    """Finds or fetches the model and decides everything that was left open. Raises ConfigError or CheckpointError."""
    _check(options)
    drafts = _draft_tokens(options)
    folder = prepare(resolve(options.model, progress=progress))
    drafter, drafter_path = _drafter(options, folder) if drafts else ("none", None)
    model = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if not (folder / "tokenizer.json").exists():
        source = json.loads((folder / "source.json").read_text(encoding="utf-8"))["path"]
        raise CheckpointError(f"{source}: has no tokenizer.json; add the model's tokenizer files to the folder")
    context = _context(options, drafts, _whole(model, "max_position_embeddings", folder, DEFAULT_CONTEXT))
    per_slot = context_pages(context, drafts) * PAGE_TOKENS
    tokenizer = Tokenizer.load(folder)
    vocab = min(tokenizer.vocab_size, _whole(model, "vocab_size", folder))
    _check_draft_head(options.draft_head, drafter if drafts or options.drafter == "none" else None)
    shortlist = _shortlist(options, tokenizer, vocab, _home(folder), drafter_path) if drafts else ()
    threads = options.threads or len(os.sched_getaffinity(0))
    weights = options.weights if options.weights != "auto" else _fastest_weights(folder, threads, say)
    return EngineConfig(
        model_folder=str(folder),
        model_name=options.model if options.model in KNOWN | SHIPPED else Path(options.model).resolve().stem,
        weights_file=str(folder / f"weights-{weights}-{WEIGHTS_LAYOUT}.safetensors"),
        device="cpu",
        weights=weights,
        drafter=drafter,
        drafter_path=drafter_path,
        draft_tokens=drafts,
        max_concurrency=options.max_concurrency,
        max_context=context,
        kv_capacity=options.kv_capacity or options.max_concurrency * per_slot,
        admission="reserve" if options.admission == "reserve" else "on-demand",
        prefix_cache=options.prefix_cache,
        state_checkpoints=options.state_checkpoints if options.prefix_cache else 0,
        kv_dtype="fp32" if weights == "fp32" else "bf16",
        prefill_chunk=options.prefill_chunk,
        threads=threads,
        sampled_vocab=vocab,
        shortlist=shortlist,
        log_stats_interval_s=options.log_stats_interval_s,
    )


def _whole(model: dict[str, object], key: str, folder: Path, default: int | None = None) -> int:
    """A positive whole number of config.json."""
    value = model.get(key, default)
    if type(value) is not int or value <= 0:
        source = json.loads((folder / "source.json").read_text(encoding="utf-8"))["path"]
        raise CheckpointError(f"{source}: config.json: {key} = {value!r}: a positive whole number is needed")
    return value


def fetch_known(name: str, progress: Progress | None = None) -> Path:
    """The file of a model that has a name, downloaded when it is not there."""
    return pull(name, progress=progress)


def resolve_model(model: str) -> Path:
    """The checkpoint behind a MODEL argument; a known one is downloaded when it is not there."""
    return resolve(model)


def user_prompt_encoder(source: Path) -> Callable[[str], list[int]]:
    """One user turn → the prompt's token ids, as the checkpoint's chat template has it."""
    folder = prepare(source)
    tokenizer = Tokenizer.load(folder)
    template = ChatTemplate.load(folder, tokenizer)
    return lambda text: tokenizer.encode(template.render([{"role": "user", "content": text}], {}))


def open_text(config: EngineConfig) -> tuple[Tokenizer, ChatTemplate, TextStream]:
    """The tokenizer and chat template of the model, and a fresh stream from token ids to text."""
    tokenizer = Tokenizer.load(config.model_folder)
    return tokenizer, ChatTemplate.load(config.model_folder, tokenizer), TextStream(tokenizer, [])


def local_engine(config: EngineConfig, publish: Callable[[Event], None]) -> Engine:
    """The engine in this process: for one reply without a server."""
    make_backend = load_object(FACTORY)
    return Engine(make_backend(config), config, publish)


def _check(options: EngineOptions) -> None:
    if options.weights != "auto" and options.weights not in WEIGHT_CODECS:
        raise ConfigError("--weights", options.weights, f"unknown; choose one of auto, {', '.join(WEIGHT_CODECS)}")
    if options.drafter != "auto" and options.drafter not in DRAFTERS:
        raise ConfigError("--drafter", options.drafter, f"unknown; choose one of auto, {', '.join(DRAFTERS)}")
    for flag, value in (
        ("--max-concurrency", options.max_concurrency),
        ("--kv-capacity", options.kv_capacity),
        ("--threads", options.threads),
    ):
        if value is not None and value < 1:
            raise ConfigError(flag, value, "must be at least 1")
    if options.max_concurrency > 64:
        raise ConfigError("--max-concurrency", options.max_concurrency, "must be at most 64")
    if options.admission not in ("on-demand", "reserve"):
        raise ConfigError("--admission", options.admission, "unknown; choose on-demand or reserve")
    if not 0 <= options.state_checkpoints <= MAX_STATE_CHECKPOINTS:
        fix = f"must be from 0 (recurrent models reuse no prefix) to {MAX_STATE_CHECKPOINTS}"
        raise ConfigError("--state-checkpoints", options.state_checkpoints, fix)
    if options.prefill_chunk < PAGE_TOKENS or options.prefill_chunk % PAGE_TOKENS:
        raise ConfigError("--prefill-chunk", options.prefill_chunk, f"must be a multiple of {PAGE_TOKENS}, such as 512")
    if not 0 < options.log_stats_interval_s < inf:
        raise ConfigError("--log-stats-interval", options.log_stats_interval_s, "must be above 0 seconds")


def _draft_tokens(options: EngineOptions) -> int:
    drafts = options.draft_tokens
    if drafts is None:
        return 0 if options.drafter == "none" else DEFAULT_DRAFT_TOKENS
    if not 0 <= drafts <= MAX_DRAFT_TOKENS:
        raise ConfigError("--draft-tokens", drafts, f"must be from 0 (no speculation) to {MAX_DRAFT_TOKENS}")
    if drafts and options.drafter == "none":
        raise ConfigError("--draft-tokens", drafts, "the drafter none proposes nothing; use 0, or another --drafter")
    return drafts


def _drafter(options: EngineOptions, folder: Path) -> tuple[str, str | None]:
    """Who drafts, and the drafter's folder: the given one, else `drafters/<name>` in the target's own folder or shipped for it.

    "auto" takes the drafter that the model has in such a folder, the last of the table where there are several.
    """
    with_folder = [name for name, weights in WEIGHTS_FROM.items() if weights is WeightsFrom.FOLDER]
    home = (SHIPPED_DRAFTERS.get(options.model) or _home(folder)) / "drafters"
    name, given = options.drafter, options.drafter_path
    if name == "auto":
        if given is not None:
            fix = f"say whose folder it is: add --drafter with one of {', '.join(with_folder)}"
            raise ConfigError("--drafter-path", given, fix)
        brought = [one for one in with_folder if (home / one / "config.json").is_file()]
        name = brought[-1] if brought else DEFAULT_DRAFTER
    if name not in with_folder:
        if given is not None:
            fix = f"the drafter {name} has no folder of its own; leave it out, or choose another --drafter"
            raise ConfigError("--drafter-path", given, fix)
        return name, None
    path = Path(given) if given else home / name
    if (path / "config.json").is_file():
        return name, str(path.resolve())
    if given:
        raise ConfigError("--drafter-path", path, "holds no config.json; give the drafter's checkpoint folder")
    fix = f"this model brings none; put the drafter's checkpoint into {path}, or name its folder with --drafter-path"
    raise ConfigError("--drafter", name, fix)


def _home(folder: Path) -> Path:
    """The folder where the target's own checkpoint lies."""
    source = Path(json.loads((folder / "source.json").read_text(encoding="utf-8"))["path"])
    return source.parent if source.is_file() else source


def _check_draft_head(head: str, drafter: str | None) -> None:
    """`drafter` is the one that drafts; None where nothing is drafted."""
    if not re.fullmatch(r"full|shortlist(:[0-9]{1,9})?", head):
        fix = "choose full, shortlist, or shortlist:N with a number of tokens, such as shortlist:8192"
        raise ConfigError("--draft-head", head, fix)
    if head != "full" and drafter is not None and WEIGHTS_FROM[drafter] is WeightsFrom.NOTHING:
        others = ", ".join(name for name, weights in WEIGHTS_FROM.items() if weights is not WeightsFrom.NOTHING)
        fix = f"the drafter {drafter} uses no head; leave it out, or choose another --drafter ({others})"
        raise ConfigError("--draft-head", head, fix)


def _shortlist(
    options: EngineOptions, tokenizer: Tokenizer, vocab: int, home: Path, drafter_path: str | None
) -> tuple[int, ...]:
    """The ids below `vocab` that drafts come from, ascending; empty for the full head."""
    if options.draft_head == "full":
        return ()
    least = sum(i < vocab for i in required_ids(tokenizer))
    given = options.draft_head.partition(":")[2]
    size = int(given) if given else max(int(vocab * DEFAULT_SHORTLIST), least)
    if not least <= size <= vocab:
        fix = f"this model's shortlists have from {least} tokens (the special ones) to {vocab}; choose such a number"
        raise ConfigError("--draft-head", options.draft_head, fix)
    files = [folder / RANKING_FILE for folder in (Path(drafter_path or home), home)]
    measured = next((read_ranking(file, vocab) for file in files if file.is_file()), [])
    ranked = [i for i in rank_tokens(tokenizer, measured) if i < vocab]
    return tuple(sorted(ranked[:size]))


def _context(options: EngineOptions, drafts: int, model_limit: int) -> int:
    context = options.max_context if options.max_context is not None else min(model_limit, DEFAULT_CONTEXT)
    if model_limit < PAGE_TOKENS:
        raise CheckpointError(
            f"max_position_embeddings = {model_limit}: models below {PAGE_TOKENS} positions cannot be served"
        )
    if context < PAGE_TOKENS:
        raise ConfigError("--max-context", context, f"must be at least {PAGE_TOKENS} tokens")
    if context > model_limit:
        raise ConfigError("--max-context", context, f"the model's positions end at {model_limit}; use at most that")
    least = context + drafts + 1
    if options.kv_capacity is not None and options.kv_capacity < least:
        fix = f"must hold one full context and a window: at least {least}, or lower --max-context"
        raise ConfigError("--kv-capacity", options.kv_capacity, fix)
    return context


def _fastest_weights(folder: Path, threads: int, say: Callable[[str], None]) -> str:
    """Measured once for a model and a thread count on this machine, then remembered: the same command, the same tokens."""
    note = cache_folder() / "fastest-weights.json"
    key = f"{folder.name} {threads} threads {WEIGHTS_LAYOUT}"
    try:
        known = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    if key in known and known[key]["fastest"] in WEIGHT_CODECS:
        return str(known[key]["fastest"])
    from paceline.runner.fastest import measure_formats

    say("weights auto: measuring the formats on this machine, once …")
    times = measure_formats(folder, threads)
    fastest = min(times, key=lambda name: times[name])
    known[key] = {"fastest": fastest, "ms": {name: round(t * 1000, 3) for name, t in times.items()}}
    scratch = note.with_suffix(f".{os.getpid()}.part")
    scratch.write_text(json.dumps(known, indent=1), encoding="utf-8")
    os.replace(scratch, note)
    return fastest
