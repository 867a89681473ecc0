"""The reference server's layout (NInfer): its arithmetic, so that its start-up figures can be predicted without it.

Everything below follows from its published memory planning (pools of 64-token pages, one state image per slot, replay records,
round buffers, a graph allowance per class of context lengths) but three constants. They are fitted on start-ups of the 27B
NVFP4 model with a block drafter, prefix reuse off (so no images beyond the slots'):
PROMPT_POSITION_BYTES on K=7, C=8; ROUND_POSITION_BYTES on the difference of K=15 to it; IMAGE_ROUND_BYTES on the vision row.
With them a slot takes 719.0 MB at K=7: image 195.9, graphs 503.3, replay records 14.3, logits 4.0, the rest 1.4. The capacities
that it chose at C=2 and C=4 come out to the page without another constant.
"""

from paceline.core.config import MAX_DRAFT_TOKENS, PAGE_TOKENS
from paceline.core.formats import KvFormat
from paceline.core.spec import DrafterSpec, LayerKind, MemItem, ModelSpec
from paceline.memory.layout import state_bytes, token_bytes
from paceline.memory.plan import Demand, Device, Subject, drafter_of
from paceline.memory.plan_engine import IMAGE_TOKENS, loaded_items

MIB = 2**20
# Activations are bf16 whatever the weights are.
BF16, ACTIVATION = 2, "bfloat16"
# Fitted: scratch of one position of a prompt chunk.
PROMPT_POSITION_BYTES = 157_104
# Fitted: ids, candidates, probabilities and hidden states of one position of a window.
ROUND_POSITION_BYTES = 7_812
# Fitted: what the tower's workspace needs beyond the text's, for an image of 16,384 tokens.
IMAGE_ROUND_BYTES = 1_294_080_160
# Block drafters have one captured graph class per range of context lengths that ends here, and one up to the context end.
CLASS_ENDS = (96, 511, 2047, 8191, 32767)
SHORT_CONTEXT = 4096
MOST_HEAD_DRAFTS = 5


class ReferenceLayout:
    prefill_chunk = 1024
    state_checkpoints = 0
    max_concurrency = 8

    def most_drafts(self, drafter: DrafterSpec) -> int:
        """It has block drafters and the checkpoint's head, no lookup in the text."""
        if drafter.taps:
            return MAX_DRAFT_TOKENS
        return MOST_HEAD_DRAFTS if drafter.hidden else 0

    def least_pages(self, demand: Demand) -> int:
        return max(-(-demand.max_context // PAGE_TOKENS), demand.max_concurrency)

    def most_pages(self, demand: Demand) -> int:
        return demand.max_concurrency * -(-demand.max_context // PAGE_TOKENS)

    def largest_each(self, demand: Demand, pages: int) -> int:
        return min(pages // demand.max_concurrency * PAGE_TOKENS, demand.max_context)

    def items(self, subject: Subject, demand: Demand, device: Device, pages: int) -> tuple[MemItem, ...]:
        model, c, k = subject.model, demand.max_concurrency, demand.draft_tokens
        kv, drafter = subject.kv[demand.kv_dtype], drafter_of(subject, demand)
        vision = subject.vision if demand.vision else None
        rings, image = ring_bytes(drafter, demand), self.checkpoint_bytes(subject, demand)
        paged = paged_bytes(model, kv, drafter, demand, pages)
        graphs = graph_bytes(drafter, demand) if device.graphs else 0
        image_tokens = min(IMAGE_TOKENS, demand.max_context)
        return (
            *loaded_items(subject, vision, drafter, device),
            MemItem(
                "KV",
                pages * PAGE_TOKENS * token_bytes(model, kv),
                f"{pages:,} pages of {PAGE_TOKENS} tokens, {token_bytes(model, kv):,} B a token",
            ),
            MemItem("state slots", c * (image - rings), f"{c} images"),
            MemItem("window inputs", c * (k + 1) * record_bytes(model) if k else 0, f"{c} replay records"),
            MemItem("drafter context", c * rings + paged, f"{c} rings of {rings:,} B, {paged:,} B in pages"),
            MemItem(
                "state checkpoints", demand.state_checkpoints * image, f"{demand.state_checkpoints} of {image:,} B each"
            ),
            MemItem("vision workspace", IMAGE_ROUND_BYTES * image_tokens // IMAGE_TOKENS if vision else 0, "fitted"),
            MemItem(
                "workspace",
                min(demand.prefill_chunk, demand.max_context) * prompt_bytes(model, drafter)
                + c * slot_round_bytes(model, drafter, k),
                f"{demand.prefill_chunk} prompt positions, round buffers of {c} slots",
            ),
            MemItem("graph allowance", c * graphs, f"{c} × {graphs:,} B"),
        )

    def checkpoint_bytes(self, subject: Subject, demand: Demand) -> int:
        """A state image: recurrent state, conv columns, last hidden state, and the drafter's rings."""
        rings = ring_bytes(drafter_of(subject, demand), demand)
        return state_bytes(subject.model, 1, ACTIVATION) + subject.model.hidden * BF16 + rings


def ring_bytes(drafter: DrafterSpec, demand: Demand) -> int:
    """Sliding layers keep their window for each slot, however short the context is."""
    return sum(context.token_bytes * context.window for context in drafter.contexts if context.window is not None)


def paged_bytes(model: ModelSpec, kv: KvFormat, drafter: DrafterSpec, demand: Demand, pages: int) -> int:
    """Drafter layers that see everything live in pages too: those of a head in the KV dtype, with pages for its recursion on
    top; those of a block drafter in bf16."""
    total = 0
    for context in drafter.contexts:
        if context.window is None and drafter.hidden:
            extra = demand.max_concurrency * -(-(demand.draft_tokens - 1) // PAGE_TOKENS)
            total += (pages + extra) * PAGE_TOKENS * kv.token_bytes(model.kv_heads, model.head_dim)
        elif context.window is None:
            total += pages * PAGE_TOKENS * context.token_bytes
    return total


def record_bytes(model: ModelSpec) -> int:
    """One window position of the replay record: conv inputs, keys and values in bf16, decay and beta in fp32."""
    gdn = model.gdn
    if gdn is None:
        return 0
    wide = gdn.conv_channels + gdn.key_heads * gdn.key_dim + gdn.value_heads * gdn.value_dim
    return model.layers.count(LayerKind.GDN) * (wide * BF16 + gdn.value_heads * 2 * 4)


def prompt_bytes(model: ModelSpec, drafter: DrafterSpec) -> int:
    """One position of a prompt chunk: the target's features for a block drafter, the hidden state, and scratch."""
    return (len(drafter.taps) + 1) * model.hidden * BF16 + PROMPT_POSITION_BYTES


def slot_round_bytes(model: ModelSpec, drafter: DrafterSpec, k: int) -> int:
    """A slot's round buffers: logits in bf16 and the drafter's features per window position, token counts, a hidden state."""
    position = model.vocab * BF16 + (ROUND_POSITION_BYTES if k else model.hidden * BF16)
    position += len(drafter.taps) * model.hidden * BF16
    proposal = model.vocab * BF16 if drafter.hidden else 0
    return (k + 1) * position + model.vocab * 4 + model.hidden * BF16 + proposal


def graph_bytes(drafter: DrafterSpec, demand: Demand) -> int:
    """The graph allowance of one slot."""
    if drafter.taps:
        last = demand.max_context - 1
        ends = [*(end for end in CLASS_ENDS if end < last), last]
        visible = (min(demand.max_context, end + demand.draft_tokens + 1) for end in ends)
        return sum(64 if tokens <= SHORT_CONTEXT else 96 for tokens in visible) * MIB
    if drafter.hidden:
        return (12 if demand.max_context <= SHORT_CONTEXT else 82) * MIB
    return 12 * MIB
