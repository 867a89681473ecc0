"""What `paceline plan` prints: the reservations, what the capacity means, and the largest contexts; or one JSON object."""

from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from paceline.core.config import PAGE_TOKENS
from paceline.core.units import exact_bytes, format_bytes
from paceline.memory.plan import Plan
from paceline.memory.plan_fit import Law
from paceline.memory.plan_search import Cell, Largest, Planner

WIDTH, MOST_COLUMNS = 128, 10


@dataclass(frozen=True, slots=True)
class Answer:
    """All that the command found out; `weights` is the format that was planned with."""

    planner: Planner
    weights: str
    layout: str
    plan: Plan
    largest: Largest
    law: Law
    grid: list[Cell]

    @property
    def largest_each(self) -> int:
        return self.planner.layout.largest_each(self.plan.demand, self.plan.pages)

    @property
    def token_bytes(self) -> int:
        """Of a KV token, with what the drafter keeps of it."""
        return self.planner.page_bytes(self.plan.demand) // PAGE_TOKENS


def to_json(answer: Answer) -> dict[str, object]:
    """`items` add up to `total_bytes` = `reservation_bytes` + what is kept free. Where it does not fit, all figures are those
    of the least KV that the context needs. Every value is in bytes or tokens."""
    plan, demand = answer.plan, answer.plan.demand
    return {
        "model": answer.planner.subject.model.name,
        "device": answer.planner.device.name,
        "layout": answer.layout,
        "weights": answer.weights,
        **{name: value for name, value in asdict(demand).items() if name not in ("kv_capacity", "safety_bytes")},
        "items": [{"name": item.name, "bytes": item.bytes, "detail": item.detail} for item in plan.items],
        "reservation_bytes": plan.reservation_bytes,
        "total_bytes": plan.total_bytes,
        "available_bytes": plan.available_bytes,
        "slack_bytes": plan.slack_bytes,
        "fits": plan.fits,
        "short_bytes": plan.short_bytes,
        "kv_capacity_tokens": plan.kv_tokens,
        "kv_bytes_per_token": answer.token_bytes,
        "full_requests": plan.full_requests,
        "largest_each": answer.largest_each,
        "state_checkpoint_bytes": plan.checkpoint_bytes,
        "largest": asdict(answer.largest),
        "law": asdict(answer.law),
        "grid": [asdict(cell) for cell in answer.grid],
    }


def print_plan(answer: Answer) -> None:
    console = Console(width=None if Console().is_terminal else WIDTH)
    plan, demand = answer.plan, answer.plan.demand
    drafts = f"{demand.drafter} K={demand.draft_tokens}" if demand.draft_tokens else "no drafts"
    console.print(
        f"[bold]{answer.planner.subject.model.name}[/] on {answer.planner.device.name}, {answer.layout} layout: "
        f"C={demand.max_concurrency}, {drafts}, context {demand.max_context:,}, KV {demand.kv_dtype}"
        + ("" if answer.planner.device.after_weights else f", weights {answer.weights}")
        + (", vision" if demand.vision else ""),
        highlight=False,
    )
    console.print(_items(plan), highlight=False)
    console.print(_verdict(answer), highlight=False)
    console.print(_by_slots(answer), highlight=False)
    console.print(_contexts(answer), highlight=False)


def _items(plan: Plan) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("reservation")
    table.add_column("bytes", justify="right")
    table.add_column("", justify="right")
    table.add_column("")
    for item in plan.items:
        table.add_row(item.name, f"{item.bytes:,}", format_bytes(item.bytes), item.detail)
    table.add_row("[bold]all", f"{plan.total_bytes:,}", format_bytes(plan.total_bytes))
    table.add_row("device", f"{plan.available_bytes:,}", format_bytes(plan.available_bytes))
    left = plan.available_bytes - plan.total_bytes
    table.add_row("left" if left >= 0 else "[bold red]missing", f"{abs(left):,}", format_bytes(abs(left)))
    return table


def _verdict(answer: Answer) -> str:
    plan, demand, law = answer.plan, answer.plan.demand, answer.law
    lines = []
    if plan.fits:
        lines.append(
            f"KV capacity: {plan.kv_tokens:,} tokens = {plan.full_requests:.2f} requests of {demand.max_context:,} tokens at "
            f"once; all {demand.max_concurrency} at once have up to {answer.largest_each:,} tokens each."
        )
    if plan.checkpoint_bytes:
        lines.append(f"A state checkpoint on the device costs {exact_bytes(plan.checkpoint_bytes)}.")
    lines.append(
        f"Linear fit: {law.bytes_per_kv_token:,.0f} B a KV token, {law.bytes_per_slot:,.0f} B a slot, "
        f"{law.bytes_per_draft_token:,.0f} B a draft token of a slot; off by at most {format_bytes(law.largest_error_bytes)}."
    )
    return "\n".join(lines)


def _by_slots(answer: Answer) -> Table:
    """What each C means at the plan's K and KV dtype."""
    demand = answer.plan.demand
    table = Table(box=None, pad_edge=False)
    at = f"at {demand.max_context:,}: KV tokens"
    for heading in ("C", "largest context", at, "full-length requests at once", "tokens of each, all C at once"):
        table.add_column(heading, justify="right")
    for cell in answer.grid:
        if (cell.draft_tokens, cell.kv_dtype) == (demand.draft_tokens, demand.kv_dtype):
            fits = cell.kv_tokens > 0
            table.add_row(
                str(cell.max_concurrency),
                _or_dash(cell.max_context),
                _or_dash(cell.kv_tokens or None),
                f"{cell.full_requests:.2f}" if fits else "–",
                _or_dash(cell.largest_each if fits else None),
            )
    return table


def _contexts(answer: Answer) -> Table:
    """The largest context of every KV dtype and K, a column per C; of many C the powers of two and the last."""
    table = Table(title="Largest context", box=None, pad_edge=False, title_justify="left")
    table.add_column("KV dtype")
    table.add_column("K", justify="right")
    rows: dict[tuple[str, int], dict[int, str]] = {}
    for cell in answer.grid:
        rows.setdefault((cell.kv_dtype, cell.draft_tokens), {})[cell.max_concurrency] = _or_dash(cell.max_context)
    slots = sorted({cell.max_concurrency for cell in answer.grid})
    if len(slots) > MOST_COLUMNS:
        slots = [c for c in slots if c & (c - 1) == 0 or c == slots[-1]]
    for c in slots:
        table.add_column(f"C={c}", justify="right")
    for (kv_dtype, k), contexts in rows.items():
        table.add_row(kv_dtype, str(k), *(contexts[c] for c in slots))
    return table


def _or_dash(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def missing(answer: Answer) -> str:
    """One line: the bytes that are missing, and for each flag that would help the largest value that fits."""
    plan, demand, largest = answer.plan, answer.plan.demand, answer.largest
    # Nothing fits as asked, so every value here is another one.
    helps = [
        f"{flag} {value}"
        for flag, value in (
            ("--max-context", largest.max_context),
            ("--max-concurrency", largest.max_concurrency),
            ("--draft-tokens", largest.draft_tokens),
            ("--kv-capacity", largest.kv_capacity),
            ("--state-checkpoints", largest.state_checkpoints),
            ("--kv-dtype", largest.kv_dtype),
            ("--drafter", largest.drafter),
        )
        if value is not None
    ]
    if demand.vision and largest.vision is not None:
        helps.append("no --vision")
    what = f"does not fit {answer.planner.device.name}: {exact_bytes(plan.short_bytes)} missing"
    if helps:
        return f"{what}; any one of these fits: {', '.join(helps)}"
    return f"{what}; no single flag helps: combine a shorter context, fewer slots and a smaller KV dtype, or use more memory"
