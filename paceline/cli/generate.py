"""`paceline generate`: one reply in the terminal, without a server."""

import secrets
import time
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from paceline.build import DEFAULT_MODEL, EngineOptions, TextStream, local_engine, open_text
from paceline.cli.options import (
    MODEL_HELP,
    Drafter,
    DrafterPath,
    DraftHead,
    DraftTokens,
    MaxContext,
    Threads,
    Weights,
    resolve_config,
)
from paceline.core.errors import ConfigError
from paceline.core.messages import Event, Finished, Tally, Tokens
from paceline.core.request import Request, SamplingParams


def generate(
    prompt: Annotated[str, typer.Argument(help="What to ask. The model's chat template is applied.")],
    model: Annotated[str, typer.Option(help=MODEL_HELP)] = DEFAULT_MODEL,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of the reply.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 is greedy; 0 to 2.")] = 0.0,
    top_p: Annotated[
        float, typer.Option(help="Keep the most likely tokens up to this probability; above 0, to 1.")
    ] = 1.0,
    top_k: Annotated[int, typer.Option(help="Keep the k most likely tokens; 0 keeps all.")] = 0,
    seed: Annotated[
        int | None, typer.Option(help="The same seed gives the same reply. Default: drawn, and shown.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue PROMPT as it is, without the chat template.")] = False,
    drafter: Drafter = "auto",
    drafter_path: DrafterPath = None,
    draft_tokens: DraftTokens = None,
    draft_head: DraftHead = "full",
    max_context: MaxContext = None,
    weights: Weights = "auto",
    threads: Threads = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one object with the text, token ids and figures.")
    ] = False,
) -> None:
    """Answer PROMPT with one reply, streamed, and say how fast it came."""
    for flag, value, good, rule in (
        ("--max-tokens", max_tokens, max_tokens >= 1, "at least 1"),
        ("--temperature", temperature, 0 <= temperature <= 2, "from 0 (greedy) to 2"),
        ("--top-p", top_p, 0 < top_p <= 1, "above 0, at most 1"),
        ("--top-k", top_k, top_k >= 0, "at least 0 (off)"),
        ("--seed", seed, seed is None or -(2**63) <= seed < 2**64, "a whole number of 64 bits"),
    ):
        if not good:
            raise ConfigError(flag, value, f"must be {rule}")
    config = resolve_config(
        EngineOptions(
            prefix_cache=False,
            model=model,
            weights=weights,
            drafter=drafter,
            drafter_path=drafter_path,
            draft_tokens=draft_tokens,
            draft_head=draft_head,
            max_concurrency=1,
            max_context=max_context,
            threads=threads,
        )
    )

    tokenizer, template, stream = open_text(config)
    text = prompt if raw else template.render([{"role": "user", "content": prompt}], {})
    ids = tokenizer.encode(text, "PROMPT", bos=raw)
    if not ids:
        raise ConfigError("PROMPT", repr(prompt), "has no tokens; write some text")
    if len(ids) >= config.max_context:
        raise ConfigError("PROMPT", f"{len(ids)} tokens", f"the context is {config.max_context}; shorten it")
    request = Request(
        id=1,
        prompt=ids,
        max_tokens=max_tokens,
        sampling=SamplingParams(
            seed=secrets.randbits(63) if seed is None else seed % 2**64,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
        ),
        stop_ids=tokenizer.generation.eos_ids,
    )
    reply = _Reply(stream, echo=not json)
    engine = local_engine(config, reply.take)
    begun = time.monotonic()
    engine.submit(request)
    while engine.busy:
        engine.step()
    figures = reply.figures(begun) | {"prompt_tokens": len(ids), "seed": request.sampling.seed}
    if json:
        typer.echo(msgspec.json.encode({"text": reply.text, "token_ids": reply.ids, **figures}).decode())
        return
    head = f" {config.draft_head}" if config.shortlist else ""
    print()
    Console(stderr=True).print(
        f"[dim]{len(reply.ids)} tokens, {figures['decode_tokens_per_second']:.1f} tok/s, first after "
        f"{figures['ttft_s']:.2f} s; {config.weights}, {config.drafter} K={config.draft_tokens}{head}: "
        f"{figures['tokens_per_round']:.2f} tokens/round, {figures['accepted_tokens']} of {figures['drafted_tokens']} "
        f"drafts accepted; {figures['finish_reason']}; seed {request.sampling.seed}[/dim]",
        highlight=False,
    )


class _Reply:
    """Collects one request's events, and shows the text as it comes."""

    def __init__(self, stream: TextStream, echo: bool) -> None:
        self._stream, self._echo = stream, echo
        self._tally = Tally()
        self._times: list[float] = []
        self.ids: list[int] = []
        self.text, self.reason = "", ""

    def take(self, event: Event) -> None:
        if isinstance(event, Tokens):
            self._times.append(event.t)
            self.ids += event.ids
            self._tally.add(len(event.ids), event.proposed, event.accepted)
            self._show(self._stream.push(event.ids))
        elif isinstance(event, Finished):
            self._show(self._stream.finish())
            self.reason = event.reason

    def _show(self, text: str) -> None:
        self.text += text
        if self._echo:
            print(text, end="", flush=True)

    def figures(self, begun: float) -> dict[str, Any]:
        counts = self._tally.at(len(self.ids))
        decode_s = self._times[-1] - self._times[0]
        return {
            "finish_reason": self.reason,
            "completion_tokens": len(self.ids),
            "ttft_s": self._times[0] - begun,
            "decode_tokens_per_second": (len(self.ids) - 1) / decode_s if decode_s else 0.0,
            "rounds": counts.rounds,
            "drafted_tokens": counts.proposed,
            "accepted_tokens": counts.accepted,
            "tokens_per_round": 1 + counts.accepted / counts.rounds if counts.rounds else 1.0,
        }
