"""`paceline serve`: an OpenAI-compatible server for one model."""

from math import inf
from pathlib import Path
from typing import Annotated

import typer

from paceline.build import DEFAULT_MODEL, DEFAULT_STATE_CHECKPOINTS, FACTORY, EngineOptions
from paceline.cli.options import (
    Drafter,
    DrafterPath,
    DraftHead,
    DraftTokens,
    MaxContext,
    Model,
    Threads,
    Weights,
    resolve_config,
)
from paceline.core.errors import ConfigError


def serve(
    model: Model = DEFAULT_MODEL,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 for every one of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 8080,
    drafter: Drafter = "auto",
    drafter_path: DrafterPath = None,
    draft_tokens: DraftTokens = None,
    draft_head: DraftHead = "full",
    max_concurrency: Annotated[
        int, typer.Option(help="C: requests that run at once. More share each read of the weights; the rest queue.")
    ] = 4,
    max_context: MaxContext = None,
    kv_capacity: Annotated[
        int | None,
        typer.Option(help="Tokens of KV cache for all requests together. Default: a full context for each of C."),
    ] = None,
    admission: Annotated[
        str,
        typer.Option(
            help="on-demand: requests take KV pages as they grow, and the newest is paused when none are left; reserve: a "
            "request waits until all that it may need is free."
        ),
    ] = "on-demand",
    prefix_cache: Annotated[
        bool, typer.Option("--prefix-cache/--no-prefix-cache", help="Reuse what earlier requests computed of a prompt.")
    ] = True,
    state_checkpoints: Annotated[
        int,
        typer.Option(
            help="Places for copies of a slot's state, which models with recurrent layers and drafters need to go on from a "
            "prefix or a pause."
        ),
    ] = DEFAULT_STATE_CHECKPOINTS,
    prefill_chunk: Annotated[
        int, typer.Option(help="Most prompt tokens per round, a multiple of 64. Smaller keeps running replies fluent.")
    ] = 512,
    weights: Weights = "auto",
    threads: Threads = None,
    model_id: Annotated[str | None, typer.Option(help="Name of the model in the API. Default: MODEL's own.")] = None,
    default_max_tokens: Annotated[int, typer.Option(help="Output limit of a request that names none.")] = 2048,
    max_pending: Annotated[int, typer.Option(help="Requests that may wait beyond C; one more gets 429.")] = 64,
    pending_timeout: Annotated[
        float, typer.Option(help="Seconds a request may wait for a slot; then it gets 503.")
    ] = 300.0,
    max_request_mib: Annotated[int, typer.Option(help="Largest request body in MiB.")] = 16,
    request_log: Annotated[Path | None, typer.Option(help="Append the request log (JSON lines) to this file.")] = None,
    log_token_ids: Annotated[bool, typer.Option("--log-token-ids", help="Log each reply's token ids.")] = False,
    log_stats_interval: Annotated[float, typer.Option(help="Seconds between throughput lines in the log.")] = 5.0,
) -> None:
    """Serve MODEL over the OpenAI API: /v1/chat/completions, /v1/completions, /v1/models, /health.

    Speculation changes the speed and nothing else: the same seed gives the same reply for every drafter, K and C.
    """
    from paceline.server.config import ServerConfig
    from paceline.server.run import run

    if not 0 <= port <= 65535:
        raise ConfigError("--port", port, "must be from 0 to 65535")
    for flag, value in (("--default-max-tokens", default_max_tokens), ("--max-request-mib", max_request_mib)):
        if value < 1:
            raise ConfigError(flag, value, "must be at least 1")
    if max_pending < 0:
        raise ConfigError("--max-pending", max_pending, "must be at least 0")
    if not 0 < pending_timeout < inf:
        raise ConfigError("--pending-timeout", pending_timeout, "must be above 0 seconds")
    options = EngineOptions(
        model=model,
        weights=weights,
        drafter=drafter,
        drafter_path=drafter_path,
        draft_tokens=draft_tokens,
        draft_head=draft_head,
        max_concurrency=max_concurrency,
        max_context=max_context,
        kv_capacity=kv_capacity,
        admission=admission,
        prefix_cache=prefix_cache,
        state_checkpoints=state_checkpoints,
        prefill_chunk=prefill_chunk,
        threads=threads,
        log_stats_interval_s=log_stats_interval,
    )
    config = resolve_config(options)
    server = ServerConfig(
        host=host,
        port=port,
        public_model_id=model_id or config.model_name,
        max_pending=max_pending,
        pending_timeout_s=pending_timeout,
        max_request_bytes=max_request_mib * 2**20,
        default_max_tokens=default_max_tokens,
        log_path=str(request_log) if request_log else None,
        log_token_ids=log_token_ids,
    )
    run(config, FACTORY, server)
