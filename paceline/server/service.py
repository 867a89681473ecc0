"""From a checked request to the engine: room in the queue, template, token ids, limits, submission.

The same for every protocol: `openai.py` brings an `Ask`, `generation.py` follows what was accepted. Counts in tokens.
"""

import asyncio
from time import monotonic

from paceline.core.config import PAGE_TOKENS, EngineConfig
from paceline.core.errors import EngineError, RequestError
from paceline.core.request import CancelCause, Request
from paceline.engine.api import EngineClient, RequestHandle
from paceline.server.config import ServerConfig
from paceline.server.generation import Generation
from paceline.server.openai import Ask, AskContext
from paceline.server.reqlog import RequestLog, Start
from paceline.text.stream import TextStream
from paceline.text.template import ChatTemplate
from paceline.text.tokenizer import Tokenizer

# Shorter prompts are tokenised in less time than a thread takes to start.
_INLINE_CHARS = 8192


class Service:
    """Owns the requests between HTTP and one engine, and their ids."""

    def __init__(
        self,
        engine: EngineClient,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        engine_config: EngineConfig,
        config: ServerConfig,
        log: RequestLog,
    ) -> None:
        self.engine, self.log, self.config = engine, log, config
        self.max_context = engine_config.max_context
        self.context = AskContext(
            public_model_id=config.public_model_id,
            vocab_size=engine_config.sampled_vocab or tokenizer.vocab_size,
            default_max_tokens=config.default_max_tokens,
            sampling=tokenizer.generation.sampling,
        )
        self._tokenizer, self._template, self._engine_config = tokenizer, template, engine_config
        self._places = engine_config.max_concurrency + config.max_pending
        self._taken = 0
        self._last_id = 0
        self._stopping = False
        self._running: dict[asyncio.Task[None], Generation] = {}

    @property
    def state(self) -> str:
        """The engine's state, or `stopping`."""
        return "stopping" if self._stopping else self.engine.state

    @property
    def outstanding(self) -> int:
        return self._taken

    async def start(self) -> None:
        """Returns when the engine is ready; EngineError when it cannot be."""
        await self.engine.start()
        self.log.server_start(self._tokenizer.generation.sampling, self.engine.facts)

    async def cancel_all(self, cause: CancelCause) -> None:
        """Refuses what comes and cancels what is here; returns when every request has its terminal line."""
        self._stopping = True
        for generation in self._running.values():
            generation.cancel(cause)
        if self._running:
            await asyncio.wait(self._running)

    async def stop(self, reason: str) -> None:
        """Ends the engine and the log. Requests that `cancel_all` could not end are ended by the engine's end."""
        self._stopping = True
        await self.engine.stop()
        if self._running:
            await asyncio.wait(self._running)
        self.log.server_stop(reason)

    async def open(self, ask: Ask, arrived_s: float) -> Generation:
        """Accepts the request and submits it; RequestError when it cannot be taken."""
        self._take_place()
        try:
            begun = monotonic()
            prompt = await self._prompt(ask)
            tokenize_s = monotonic() - begun
            request = self._request(ask, prompt)
            self._require_ready()
        except BaseException:
            self._taken -= 1
            raise
        self.log.request_start(
            Start(
                request=request,
                protocol=ask.protocol,
                stream=ask.stream,
                message_count=len(ask.messages or ()),
                requested_tokens=ask.requested_tokens,
                requested_by_client=ask.requested_by_client,
                user=ask.user,
                prepare_s=monotonic() - arrived_s,
                tokenize_s=tokenize_s,
            )
        )
        return self._submit(request, ask.stop, arrived_s)

    def _submit(self, request: Request, stop: list[str], arrived_s: float) -> Generation:
        handle: RequestHandle | None = None
        refusal = ""
        # Taken first: the engine may begin before this call returns.
        submitted_s = monotonic()
        try:
            handle = self.engine.submit(request)
        except EngineError as error:
            refusal = str(error)
        text = TextStream(self._tokenizer, stop)
        generation = Generation(
            request, text, self.engine, self.log, arrived_s, submitted_s, self.config.pending_timeout_s
        )
        task = asyncio.create_task(generation.run(handle, refusal), name=f"req-{request.id}")
        self._running[task] = generation
        task.add_done_callback(self._release)
        return generation

    def _release(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._taken -= 1

    def _take_place(self) -> None:
        self._require_ready()
        if self._taken >= self._places:
            raise RequestError(
                f"{self._taken} requests are running or waiting, this server takes {self._places}; try again later",
                code="server_overloaded",
                status=429,
                kind="rate_limit_error",
            )
        self._taken += 1

    def _require_ready(self) -> None:
        if self.state != "ready":
            message = f"the server is {self.state}; see /health"
            raise RequestError(message, code="service_unavailable", status=503, kind="server_error")

    async def _prompt(self, ask: Ask) -> list[int]:
        if ask.prompt_ids is not None:
            return ask.prompt_ids
        pieces = (message["content"] for message in ask.messages or ({"content": ask.prompt_text},))
        if sum(len(str(piece)) for piece in pieces) <= _INLINE_CHARS:
            return self._tokenize(ask)
        return await asyncio.to_thread(self._tokenize, ask)

    def _tokenize(self, ask: Ask) -> list[int]:
        if ask.prompt_text is not None:
            return self._tokenizer.encode(ask.prompt_text, "prompt", bos=True)
        return self._tokenizer.encode(self._template.render(ask.messages or [], ask.template_options), "messages")

    def _request(self, ask: Ask, prompt: list[int]) -> Request:
        param = "prompt" if ask.messages is None else "messages"
        if not prompt:
            raise RequestError(f"{param}: no tokens; send some text", param, "invalid_prompt")
        if len(prompt) >= self.max_context:
            raise RequestError(
                f"the prompt has {len(prompt)} tokens, the context holds {self.max_context} with at least one for the "
                "reply; shorten the prompt",
                param,
                "context_length_exceeded",
            )
        # A tokenizer can know tokens for which the model has no row: no text may make the engine look for one.
        if max(prompt) >= self.context.vocab_size:
            message = f"{param}: token id {max(prompt)} is not in the model's vocabulary of {self.context.vocab_size}"
            raise RequestError(message, param, "invalid_prompt")
        # More than the context can hold makes no difference, and stays a number that fits the messages.
        max_tokens = min(ask.requested_tokens, self.max_context)
        needed = self._engine_config.most_tokens(len(prompt), max_tokens)
        if needed > self._engine_config.pages * PAGE_TOKENS:
            raise RequestError(
                f"max_tokens = {max_tokens}: prompt and reply need {needed} tokens of KV, this server has "
                f"{self._engine_config.pages * PAGE_TOKENS}; lower it",
                "max_tokens",
                "kv_capacity_exceeded",
            )
        self._last_id += 1
        return Request(
            id=self._last_id,
            prompt=prompt,
            max_tokens=max_tokens,
            sampling=ask.sampling,
            min_tokens=min(ask.min_tokens, max_tokens),
            stop_ids=[] if ask.ignore_eos else self._tokenizer.generation.eos_ids,
            boundaries=self._tokenizer.message_starts(prompt) if ask.messages else [],
        )
