"""The real small model: greedy text equals transformers' on the same dequantised weights, in fp32."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from paceline.build import EngineOptions, configure, open_text
from paceline.core.request import Request
from paceline.quant import WEIGHT_CODECS
from paceline.runner.weights import Weights, convert, read_family
from tests.kit.run import Model, run, sampling

QUESTIONS = (
    "What is the capital of France?",
    "Name three rivers of Europe.",
    "Write a haiku about rain.",
    "What is 12 times 12?",
    "Translate 'good morning' into Spanish.",
    "Write a Python function that adds two numbers.",
    "List the planets of the solar system.",
    "Why is the sky blue?",
    "Give me a JSON object with a name and an age.",
    "Tell me a joke about a cat.",
    "What does HTTP stand for?",
    "Summarise the story of Cinderella in one sentence.",
    "Count from one to ten.",
    "What is photosynthesis?",
    "Write a SQL query that selects all users.",
    "Who wrote Hamlet?",
    "Explain recursion to a child.",
    "How do I boil an egg?",
    "Write the opening line of a mystery novel.",
    "What colours are in a rainbow?",
)
TOKENS = 32


@pytest.mark.timeout(600)
def test_greedy_text_equals_transformers() -> None:
    config = configure(EngineOptions(model="smollm2", weights="fp32"))
    folder = Path(config.model_folder)
    source = Path(json.loads((folder / "source.json").read_text())["path"])
    family, spec = read_family(folder, "smollm2")
    model = Model(Weights(spec, convert(source, family.parts(spec), WEIGHT_CODECS.get("fp32"))), "fp32")
    tokenizer, template, _ = open_text(config)
    prompts = [tokenizer.encode(template.render([{"role": "user", "content": text}], {})) for text in QUESTIONS]
    stops = tokenizer.generation.eos_ids
    requests = [
        Request(id=i, prompt=prompt, max_tokens=TOKENS, sampling=sampling(), stop_ids=stops)
        for i, prompt in enumerate(prompts)
    ]
    replies = run(model, requests, max_concurrency=1)
    oracle = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32).eval()
    for prompt, reply in zip(prompts, replies, strict=True):
        expected = oracle.generate(
            torch.tensor([prompt]), max_new_tokens=TOKENS, do_sample=False, eos_token_id=stops, pad_token_id=stops[0]
        )[0, len(prompt) :].tolist()
        assert tokenizer.decode(reply.ids) == tokenizer.decode(expected)
        assert reply.ids == expected
