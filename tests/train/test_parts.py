"""The parts of training against independent forms: the delta rule, the model, the packed masks, the initial drafter."""

import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jinja2
import jinja2.sandbox
import pytest
import torch
from transformers.models.qwen3_5 import Qwen3_5ForCausalLM

from paceline.kernels.gdn import recurrent_
from paceline.quant import WEIGHT_CODECS
from paceline.runner.weights import convert, read_family
from paceline.train import delta
from paceline.train.block import BlockConfig, BlockDrafter, Blocks
from paceline.train.chats import TEMPLATE, Chat, render
from paceline.train.drafter_loss import DrafterLoss, draw_blocks, labels_of, row_weights
from paceline.train.embedded import toy_plan
from paceline.train.evaluate import Count
from paceline.train.export import bf16_state, drafter_config, export_target, target_config
from paceline.train.generate import generate
from paceline.train.mtp import MtpHead
from paceline.train.target import Packed, Target, TargetConfig, pack
from paceline.train.workloads import MAKERS
from tests.drafters import oracle

PLAN = toy_plan()
CONFIG = PLAN.target.config
BLOCK = PLAN.drafter.config


def shaken_target(config: TargetConfig = CONFIG) -> Target:
    """Random weights rounded to bf16, vectors included, so that a missing +1 or a swapped norm would show."""
    torch.manual_seed(0)
    target = Target(config)
    with torch.no_grad():
        for name, parameter in target.named_parameters():
            if parameter.ndim == 1 and "A_log" not in name and "dt_bias" not in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    target.load_state_dict({name: value.float() for name, value in bf16_state(target).items()})
    return target.requires_grad_(False).eval()


def one_document(ids: torch.Tensor) -> Packed:
    return pack(torch.zeros_like(ids), CONFIG, torch.float32)


def random_ids(*shape: int) -> torch.Tensor:
    return torch.randint(16, CONFIG.vocab, shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 150])
@pytest.mark.parametrize("alike", [0.0, 2.0])
def test_chunked_equals_recurrent(tokens: int, alike: float) -> None:
    """`alike` > 0 makes keys nearly equal, where a careless inverse loses all digits."""
    torch.manual_seed(tokens)
    q, k, v = (torch.randn(2, tokens, 3, 16) for _ in range(3))
    k = torch.nn.functional.normalize(k + alike, dim=-1)
    q = torch.nn.functional.normalize(q, dim=-1) / 4
    beta, g = torch.rand(2, tokens, 3), -0.1 * torch.rand(2, tokens, 3)
    out, state = delta.chunked(q, k, v, beta, g)
    for row in range(2):
        expected_state = torch.zeros(3, 16, 16)
        expected = recurrent_(expected_state, q[row], k[row], v[row], beta[row], g[row].exp())
        torch.testing.assert_close(out[row], expected, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(state[row], expected_state, atol=1e-5, rtol=1e-4)


def test_gradient_of_the_inverse() -> None:
    lower = torch.randn(2, 16, 16, dtype=torch.float64).tril(-1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: delta._UnitLowerInverse.apply(x.tril(-1)), (lower,))


def test_documents_of_a_row_do_not_see_each_other() -> None:
    target, ids = shaken_target(), random_ids(1, 130)
    docs = (torch.arange(130) >= 70).long()[None]
    packed, _ = target(ids, pack(docs, CONFIG, torch.float32))
    alone, _ = target(ids[:, 70:], one_document(ids[:, 70:]))
    torch.testing.assert_close(packed[:, 70:], alone, atol=1e-4, rtol=1e-4)


def test_target_equals_transformers_and_loads_in_paceline(tmp_path: Path) -> None:
    target, ids = shaken_target(), random_ids(2, 150)
    export_target(target, MtpHead(CONFIG), CONFIG, tmp_path, {})
    oracle = Qwen3_5ForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = oracle(ids).logits
    torch.testing.assert_close(target.logits(target(ids, one_document(ids))[0]), expected, atol=1e-4, rtol=1e-3)
    family, spec = read_family(tmp_path, "toy")
    planes = convert(tmp_path, family.parts(spec), WEIGHT_CODECS.get("bf16"))
    assert torch.equal(planes["embed"]["weight"].float(), target.model.embed_tokens.weight)


def test_batched_replies_equal_one_by_one() -> None:
    """Prompts of different lengths in one batch, by the recurrent step, against full forwards without any cache."""
    target = shaken_target()
    prompts = [random_ids(n).tolist() for n in (5, 70, 91)]
    for prompt, reply in zip(prompts, generate(target, prompts, 8, torch.zeros(3)), strict=True):
        text = list(prompt)
        for token in reply:
            ids = torch.tensor([text])
            hidden, _ = target(ids, one_document(ids))
            assert int(target.logits(hidden[0, -1]).argmax()) == token
            text.append(token)


def block_hidden(
    config: BlockConfig, drafter: BlockDrafter, ids: torch.Tensor, docs: torch.Tensor, at: list[int]
) -> torch.Tensor:
    target = shaken_target()
    _, features = target(ids, pack(docs, CONFIG, torch.float32), config.taps)
    blocks = Blocks(torch.tensor([at]), torch.full((1, len(at)), config.block))
    with torch.no_grad():
        hidden: torch.Tensor = drafter(target, ids, features, docs, blocks)
    return hidden


@pytest.mark.parametrize("dynamic", [False, True])
def test_packed_blocks_equal_blocks_alone(dynamic: bool) -> None:
    """Also with a window smaller than the context, and with a foreign document before."""
    torch.manual_seed(1)
    config = replace(BLOCK, dynamic=dynamic, window=24)
    drafter = BlockDrafter(config)
    if dynamic:
        for parameter in drafter.parameters():
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    ids = random_ids(1, 120)
    docs = (torch.arange(120) >= 50).long()[None]
    at = [3, 49, 50, 51, 80, 100]
    packed = block_hidden(config, drafter, ids, docs, at)
    for i, anchor in enumerate(at):
        # The document alone and cut after the anchor: nothing behind it may matter.
        start = 0 if anchor < 50 else 50
        cut = ids[:, start : anchor + 1]
        alone = block_hidden(config, drafter, cut, torch.zeros_like(cut), [anchor - start])
        torch.testing.assert_close(packed[0, i], alone[0, 0], atol=1e-4, rtol=1e-3)


def test_a_short_block_equals_a_drafter_with_that_block() -> None:
    torch.manual_seed(2)
    drafter, target, ids = BlockDrafter(BLOCK), shaken_target(), random_ids(1, 60)
    packed = one_document(ids)
    _, features = target(ids, packed, BLOCK.taps)
    with torch.no_grad():
        cut = drafter(target, ids, features, packed.docs, Blocks(torch.tensor([[30]]), torch.tensor([[4]])))
        small = BlockDrafter(replace(BLOCK, block=4))
        small.load_state_dict(drafter.state_dict())
        whole = small(target, ids, features, packed.docs, Blocks(torch.tensor([[30]]), torch.tensor([[4]])))
    torch.testing.assert_close(cut[:, :, :4], whole, atol=1e-5, rtol=1e-4)


def test_dflash2_starts_equal_to_dflash() -> None:
    torch.manual_seed(3)
    plain = BlockDrafter(BLOCK)
    grown = BlockDrafter(replace(BLOCK, dynamic=True))
    missing, extra = grown.load_state_dict(plain.state_dict(), strict=False)
    assert not extra
    assert all("conv" in name or "candidate_selector" in name for name in missing)
    ids = random_ids(1, 80)
    docs = torch.zeros_like(ids)
    first, second = (block_hidden(d.c, d, ids, docs, [20, 40]) for d in (plain, grown))
    torch.testing.assert_close(first, second, atol=1e-6, rtol=1e-5)
    unary = torch.randn(5, 4).sort(descending=True).values
    scores = grown.candidate_selector(
        torch.randn(5, BLOCK.hidden), torch.arange(5), torch.randint(0, 99, (5, 4)), unary
    )
    assert torch.equal(scores, unary)


def test_mtp_chain_equals_serving_order() -> None:
    """Three steps at one anchor, computed as a server does: true pairs in a growing cache, then the head's own outputs."""
    target, ids = shaken_target(), random_ids(1, 40)
    torch.manual_seed(4)
    head = MtpHead(CONFIG)
    packed = one_document(ids)
    with torch.no_grad():
        hidden, _ = target(ids, packed)
        outputs = head(target, ids, hidden, packed, 3)
        anchor = 25
        chain = hidden[:, :anchor].clone()
        for step in range(3):
            # The sequence of pairs (h, next token) up to here; its last output is this step's.
            slots = chain.shape[1]
            text = ids[:, : slots + 1]
            padded = torch.cat([chain, chain[:, -1:]], 1)
            out = head(target, text, padded, one_document(text), 1)[0][:, slots - 1]
            torch.testing.assert_close(outputs[step][:, anchor - 1 + step], out, atol=1e-4, rtol=1e-3)
            chain = torch.cat([chain, out[:, None]], 1)


def test_mtp_figures_count_whole_chains() -> None:
    """Tokens per round against a walk over every chain that lies in one document's answer."""
    torch.manual_seed(6)
    target, ids = shaken_target(), random_ids(2, 60) % 3
    head, steps = MtpHead(CONFIG), 3
    answer = (torch.arange(60) >= 10).expand(2, -1)
    docs = (torch.arange(60) >= 35).long().expand(2, -1)
    packed = pack(docs, CONFIG, torch.float32)

    class ThreeWords:
        """A head that knows three tokens is right now and then, so that there is something to count."""

        embed = target.embed

        def __call__(self, *given: object) -> tuple[torch.Tensor, list[torch.Tensor]]:
            return target(*given)

        def logits(self, hidden: torch.Tensor) -> torch.Tensor:
            return hidden[..., :3]

    few = ThreeWords()
    with torch.no_grad():
        hidden, _ = target(ids, packed)
        drafted = few.logits(head(few, ids, hidden, packed, steps)).argmax(-1)
        figures = head.loss(few, ids, answer, packed, steps)[1]
    accepted, chains, late = 0, 0, 0
    for row in range(2):
        for start in range(60 - steps - 1):
            labels = range(start + 2, start + 2 + steps)
            if all(answer[row, at] and docs[row, at] == docs[row, start] for at in labels):
                right = [bool(drafted[j, row, start + j] == ids[row, at]) for j, at in enumerate(labels)]
                accepted += [*right, False].index(False)
                late += not right[0] and any(right)
                chains += 1
    assert accepted > 0 and late > 0
    assert float(figures["tokens_per_round"]) == pytest.approx(1 + accepted / chains)


@pytest.mark.parametrize("dynamic", [False, True])
def test_block_drafter_equals_the_formulas(dynamic: bool) -> None:
    torch.manual_seed(5)
    config = replace(BLOCK, dynamic=dynamic, window=24)
    drafter, target, ids = BlockDrafter(config), shaken_target(), random_ids(1, 45)
    for parameter in drafter.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    packed = one_document(ids)
    _, features = target(ids, packed, config.taps)
    with torch.no_grad():
        hidden = drafter(
            target, ids, features, packed.docs, Blocks(torch.tensor([[40]]), torch.tensor([[config.block]]))
        )
    state, embed = drafter.state_dict(), target.model.embed_tokens.weight
    taps = torch.cat(features, -1)[0, :40]
    expected = oracle.block_hidden(state, drafter_config(config), embed, taps, int(ids[0, 40]), config.block - 1)
    torch.testing.assert_close(hidden[0, 0, 1:], expected, atol=1e-4, rtol=1e-3)


def test_mtp_head_equals_the_formulas() -> None:
    torch.manual_seed(6)
    head, target, ids = MtpHead(CONFIG), shaken_target(), random_ids(1, 30)
    for parameter in head.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    packed = one_document(ids)
    hidden, _ = target(ids, packed)
    with torch.no_grad():
        outputs = head(target, ids, hidden, packed, 1)
    state = {f"mtp.{name}": value for name, value in head.state_dict().items()}
    config = SimpleNamespace(**target_config(CONFIG))
    expected = oracle.mtp_output(state, config, target.model.embed_tokens.weight, hidden[0, :20], ids[0, 1:21].tolist())
    torch.testing.assert_close(outputs[0, 0, 19], expected, atol=1e-4, rtol=1e-3)


def test_labels_stand_at_their_own_position() -> None:
    ids = torch.arange(30)[None]
    docs = (torch.arange(30) >= 12).long()[None]
    tokens, counts = labels_of(
        ids,
        torch.ones(1, 30, dtype=torch.bool),
        docs,
        Blocks(torch.tensor([[8, 15, 26]]), torch.tensor([[8, 4, 8]])),
        BLOCK,
    )
    assert tokens[0, :, 1].tolist() == [9, 16, 27]
    assert counts[0].int().tolist() == [[0, 1, 1, 1, 0, 0, 0, 0], [0, 1, 1, 1, 0, 0, 0, 0], [0, 1, 1, 1, 0, 0, 0, 0]]


def test_anchors_are_distinct_answer_tokens() -> None:
    answer = (torch.arange(50) >= 30)[None]
    docs = (torch.arange(50) >= 40).long()[None]
    blocks, valid = draw_blocks(answer, docs, BLOCK, DrafterLoss(anchors=24))
    found = blocks.at[valid].tolist()
    assert sorted(found) == [p for p in range(30, 49) if p != 39]


def test_dpace_weights() -> None:
    right = torch.tensor([[0.5, 0.2, 1.0]])
    counts = torch.tensor([[True, True, False]])
    weights = row_weights(right, counts, DrafterLoss(dpace=0.5))
    s1, s2 = 0.75, 0.6
    torch.testing.assert_close(weights, torch.tensor([[s1 + s1 * s2 + s1 * s2, s1 * s2 + s1 * s2, 0.0]]))


def test_walk_counts_rounds_as_a_server_does() -> None:
    right = torch.zeros(3, 10, dtype=torch.bool)
    right[:2, 2] = True  # two of three drafts after the first answer token
    right[:, 5] = True  # three, but only three tokens are left after position 5
    count = Count()
    count.add(right, 2, 9)
    assert (count.emitted, count.rounds, count.at_least) == (6, 2, (2, 2, 1))
    assert count.report()["tokens_per_round"] == 3.0


def test_template_equals_render() -> None:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: __import__("json").dumps(value, ensure_ascii=False)
    template = environment.from_string(TEMPLATE)
    for kind, maker in MAKERS.items():
        for seed in range(60):
            chat: Chat = maker(random.Random(f"template/{kind}/{seed}"))
            messages = [{"role": role, "content": content} for role, content in chat.turns]
            for system in (None, "Be brief."):
                head = [] if system is None else [{"role": "system", "content": system}]
                text = template.render(messages=head + messages, tools=list(chat.tools) or None, add_generation_prompt=True,
                                       enable_thinking=chat.thinking is not None)  # fmt: skip
                assert text == render(replace(chat, system=system))[0]


def test_template_writes_tool_calls_as_the_corpus_does() -> None:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    call = {"function": {"name": "get_time", "arguments": {"city": "Oslo"}}}
    text = environment.from_string(TEMPLATE).render(
        messages=[{"role": "assistant", "content": None, "tool_calls": [call]}]
    )
    expected = "<tool_call>\n<function=get_time>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>"
    assert text == f"<|im_start|>assistant\n{expected}<|im_end|>\n"
