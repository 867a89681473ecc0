"""paceline's own layout: what its engine allocates, item by item, with the source of each formula.

Weights, KV, state slots, window inputs and drafter context are the tensors that the runner allocates (`memory/layout.py`,
`DrafterSpec.contexts`): exact, a test compares them with a running backend. Workspace and graph allowance bound what a round
needs besides. What a drafter keeps in the sequences' pages is part of what a KV token costs. All of it is linear in pages, in C
and in C · K, but for the number of captured graphs.
"""

from paceline.core.config import MAX_DRAFT_TOKENS, PAGE_TOKENS
from paceline.core.spec import DrafterSpec, LayerKind, MemItem, ModelSpec, VisionSpec
from paceline.memory.layout import ITEM_BYTES, context_pages, kv_bytes, state_bytes, token_bytes, window_bytes
from paceline.memory.plan import Demand, Device, Subject, drafter_of

# The K of the captured graphs; a round of another K runs in the next larger one.
GRAPH_DRAFTS = (0, 1, 3, 5, 7, 11, 15)
# One round is about 600 kernel launches; a graph's nodes and their arguments are planned at about 3.5 KB each.
GRAPH_BYTES = 2 * 2**20
# Penalties of a request: an fp32 count and a flag per token of the vocabulary (sampling/filters.py).
COUNT_BYTES = 5
# Two fp32 arrays over the vocabulary: the partial sums of the head's product, of which the first becomes the logits.
LOGIT_BYTES = 8
# An image is at most this many tokens; its MLP runs over pieces of this many patches.
IMAGE_TOKENS = 16384
IMAGE_PIECE = 4096


class EngineLayout:
    prefill_chunk = 512
    state_checkpoints = 8
    max_concurrency = 64

    def most_drafts(self, drafter: DrafterSpec) -> int:
        return MAX_DRAFT_TOKENS

    def least_pages(self, demand: Demand) -> int:
        return context_pages(demand.max_context, demand.draft_tokens)

    def most_pages(self, demand: Demand) -> int:
        return demand.max_concurrency * self.least_pages(demand)

    def largest_each(self, demand: Demand, pages: int) -> int:
        """Each takes the pages of its tokens and of the window past their end."""
        room = pages // demand.max_concurrency * PAGE_TOKENS - demand.draft_tokens - 1
        return max(0, min(room, demand.max_context))

    def items(self, subject: Subject, demand: Demand, device: Device, pages: int) -> tuple[MemItem, ...]:
        model, c, k = subject.model, demand.max_concurrency, demand.draft_tokens
        kv, drafter = subject.kv[demand.kv_dtype], drafter_of(subject, demand)
        slot, paged = drafter.slot_bytes(demand.max_context), pages * PAGE_TOKENS * drafter.token_bytes
        vision = subject.vision if demand.vision else None
        image = self.checkpoint_bytes(subject, demand)
        graphs = sum(drafts < k for drafts in GRAPH_DRAFTS) + 1 if device.graphs else 0
        checkpoints = demand.state_checkpoints
        return (
            *loaded_items(subject, vision, drafter, device),
            MemItem(
                "KV",
                kv_bytes(model, kv, pages),
                f"{pages:,} pages of {PAGE_TOKENS} tokens, {token_bytes(model, kv):,} B a token",
            ),
            MemItem("state slots", state_bytes(model, c, subject.activation), f"{c} slots"),
            MemItem("window inputs", window_bytes(model, c, k, subject.activation), f"{c} slots, {k} drafts each"),
            MemItem(
                "drafter context",
                c * slot + paged,
                f"{c} slots, {slot:,} B each, {drafter.token_bytes:,} B a token in pages",
            ),
            MemItem("state checkpoints", checkpoints * image, f"{checkpoints} of {image:,} B each"),
            MemItem("vision workspace", image_bytes(vision, demand.max_context) if vision else 0, "the largest image"),
            MemItem(
                "workspace",
                workspace_bytes(subject, demand, drafter),
                f"{demand.prefill_chunk} prompt and {c * (k + 1)} window positions, logits, penalty counts, position tables",
            ),
            MemItem("graph allowance", c * graphs * GRAPH_BYTES, f"{c * graphs} graphs"),
        )

    def checkpoint_bytes(self, subject: Subject, demand: Demand) -> int:
        """A slot's committed state and what its drafter keeps of it; 0 where pages hold all of a prefix."""
        drafter = drafter_of(subject, demand)
        return state_bytes(subject.model, 1, subject.activation) + drafter.slot_bytes(demand.max_context)


def loaded_items(
    subject: Subject, vision: VisionSpec | None, drafter: DrafterSpec, device: Device
) -> tuple[MemItem, ...]:
    """What is on the device before anything is planned; nothing where the device's figure is what they left over."""
    parts = (
        ("weights", subject.weights_bytes),
        ("vision weights", tower_bytes(vision) if vision else 0),
        ("drafter weights", drafter.weights_bytes),
        ("device context", device.context_bytes),
    )
    if device.after_weights:
        return tuple(MemItem(name, 0, "already off the device's figure") for name, _ in parts)
    return tuple(MemItem(name, size) for name, size in parts)


def workspace_bytes(subject: Subject, demand: Demand, drafter: DrafterSpec) -> int:
    """Activations of one forward over a prompt chunk and every slot's window; logits of the windows; penalty counts; the
    position tables of target and drafter."""
    model, item = subject.model, ITEM_BYTES[subject.activation]
    windows = demand.max_concurrency * (demand.draft_tokens + 1)
    positions = demand.max_context * model.rope.rotary_dim
    positions += (demand.max_context + demand.draft_tokens + 1) * drafter.rotary_dim
    return (
        (demand.prefill_chunk + windows) * position_bytes(model, item, len(drafter.taps))
        + windows * model.vocab * LOGIT_BYTES
        + demand.max_concurrency * model.vocab * COUNT_BYTES
        + 2 * positions * item
    )


def position_bytes(model: ModelSpec, item: int, taps: int) -> int:
    """One position's activations at the widest place of a layer: the residual, its norm and the taps, beside the widest of
    MLP (gate, up and product), attention (queries, gates, keys, values, output) and Gated DeltaNet (projections, and fp32 q,
    k, v and output per value head)."""
    q, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    widest = [3 * model.ffn * item]
    if LayerKind.FULL in model.layers:
        widest.append((q * (3 if model.attention_gate else 2) + 2 * kv) * item)
    if model.gdn is not None:
        gdn = model.gdn
        values = gdn.value_heads * gdn.value_dim
        widest.append((gdn.conv_channels + 2 * values) * item + 4 * (2 * gdn.value_heads * gdn.key_dim + 2 * values))
    return (2 + taps) * model.hidden * item + max(widest)


def tower_bytes(vision: VisionSpec) -> int:
    """Weights of the tower in bf16: patch embedding, position table, blocks with biases (two norms, qkv, projection, MLP), and
    the merger (norm, two matrices)."""
    h, f, wide = vision.hidden, vision.ffn, vision.hidden * vision.merge**2
    block = 4 * h + (3 * h * h + 3 * h) + (h * h + h) + (2 * h * f + f + h)
    stem = vision.patch_values * h + h + vision.positions * h
    merger = 2 * h + (wide * wide + wide) + (wide * vision.out + vision.out)
    return 2 * (stem + vision.depth * block + merger)


def image_bytes(vision: VisionSpec, max_context: int) -> int:
    """bf16 activations of one image: residual, norm and qkv of all patches, the MLP of a piece, the tokens that come out."""
    tokens = min(IMAGE_TOKENS, max_context)
    patches = tokens * vision.merge**2
    piece = min(IMAGE_PIECE, patches)
    return 2 * (5 * patches * vision.hidden + piece * vision.ffn + tokens * vision.out)
