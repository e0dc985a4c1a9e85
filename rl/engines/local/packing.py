"""Rows as one forward pass of the learner sees them: packed where the model allows it, padded elsewhere.

Packed, a micro-batch is one sequence without padding in which a prompt stands once for all its completions. Linear
layers and norms treat each token alone, so they need not know; only attention gets whole rows again, padded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding
from transformers import AttentionInterface, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rl.rollouts import TrainingRow

PACKED = "tanka_packed"
# Eager attention is written in each model's own file and needs a mask: such a model's rows are padded.
CAUSAL_WITHOUT_MASK = ("sdpa", "flash_attention_2")
# (prompt, completion): rows that a model is tried on. Two share a prompt, so that all but the first stand elsewhere.
TRIAL = (([3, 1, 4, 1, 5], [9, 2, 6]), ([3, 1, 4, 1, 5], [5, 3]), ([8, 9], [7, 9, 3, 2]))
SAME = 0.05  # relative; bfloat16 rounding makes about 0.01, a token that sees another row far more


@dataclass(frozen=True)
class Packing:
    """How K packed tokens make B rows of L columns, and back.

    rows: [B, L] the token at each column (any token at padding). places: [K] where each token stands in the B x L grid.
    implementation: the attention that the rows get.
    """

    rows: Tensor
    places: Tensor
    implementation: str


@dataclass(frozen=True)
class Layout:
    """B rows of up to T completion tokens, C in all, as the model's input of S sequences x K tokens.

    inputs: what the model is called with. predicting: [C] the place in the S x K grid whose hidden state predicts each
    completion token. targets: [C] the completion tokens. cells: [C] their places in the grid of `shape`, (B, T).
    """

    inputs: dict[str, Any]
    predicting: Tensor
    targets: Tensor
    cells: Tensor
    shape: tuple[int, int]

    def by_row(self, values: Tensor) -> Tensor:
        """[B, T] from [C] values, 0 at padding."""
        flat = values.new_zeros(self.shape[0] * self.shape[1])
        return flat.index_put((self.cells,), values).view(self.shape)


def microbatches(rows: Sequence[TrainingRow], limit: int, packed: bool) -> Iterator[list[int]]:
    """Indices of rows that are computed together: rows of like length, as many as `limit` tokens hold.

    Packed, rows of one prompt stay next to each other and it counts once; padded, the padding counts.
    """
    prompts = [tuple(row.prompt_tokens) for row in rows]
    lengths = [len(row.prompt_tokens) + len(row.completion_tokens) for row in rows]
    order = sorted(range(len(rows)), key=lambda i: lengths[i])
    if packed:
        longest = {prompts[i]: lengths[i] for i in order}
        order.sort(key=lambda i: (longest[prompts[i]], prompts[i]))
    batch: list[int] = []
    tokens = 0
    for i in order:
        shared = len(prompts[i]) if batch and prompts[i] == prompts[batch[-1]] else 0
        grown = tokens + lengths[i] - shared if packed else (len(batch) + 1) * lengths[i]
        if batch and grown > limit:
            yield batch
            batch, grown = [], lengths[i]
        batch.append(i)
        tokens = grown
    if batch:
        yield batch


def padded_layout(rows: Sequence[TrainingRow], device: torch.device) -> Layout:
    """A sequence for each row, padded on the right: under causal attention no token sees what follows it."""
    width = max(len(row.prompt_tokens) + len(row.completion_tokens) for row in rows)
    tokens = torch.zeros(len(rows), width, dtype=torch.long)
    predicting: list[int] = []
    for r, row in enumerate(rows):
        ids = [*row.prompt_tokens, *row.completion_tokens]
        tokens[r, : len(ids)] = torch.tensor(ids)
        predicting += range(r * width + len(row.prompt_tokens) - 1, r * width + len(ids) - 1)
    return _layout(rows, {"input_ids": to_device(tokens, device)}, predicting, device)


def packed_layout(rows: Sequence[TrainingRow], device: torch.device, implementation: str) -> Layout:
    """One sequence of all tokens, each at its own row's position; a prompt stands where it is needed first."""
    width = max(len(row.prompt_tokens) + len(row.completion_tokens) for row in rows)
    grid = torch.zeros(len(rows), width, dtype=torch.long)
    tokens: list[int] = []
    columns: list[int] = []  # where each token stands in its row
    places: list[int] = []
    predicting: list[int] = []
    prompts: dict[tuple[int, ...], range] = {}

    def add(ids: Sequence[int], row: int, column: int) -> range:
        start = len(tokens)
        tokens.extend(ids)
        columns.extend(range(column, column + len(ids)))
        places.extend(range(row * width + column, row * width + column + len(ids)))
        return range(start, len(tokens))

    for r, row in enumerate(rows):
        prompt = tuple(row.prompt_tokens)
        if prompt not in prompts:
            prompts[prompt] = add(prompt, r, 0)
        members = [*prompts[prompt], *add(row.completion_tokens, r, len(prompt))]
        grid[r, : len(members)] = torch.tensor(members)
        predicting += members[len(prompt) - 1 : -1]
    input_ids, position_ids, where = to_device(torch.tensor([tokens, columns, places]), device)
    inputs = {
        "input_ids": input_ids[None],
        "position_ids": position_ids[None],
        "packing": Packing(to_device(grid, device), where, implementation),
    }
    return _layout(rows, inputs, predicting, device)


def _layout(
    rows: Sequence[TrainingRow], inputs: dict[str, Any], predicting: list[int], device: torch.device
) -> Layout:
    longest = max(len(row.completion_tokens) for row in rows)
    targets = [token for row in rows for token in row.completion_tokens]
    cells = [r * longest + t for r, row in enumerate(rows) for t in range(len(row.completion_tokens))]
    indices = torch.tensor([predicting, targets, cells], dtype=torch.long)
    on_device = to_device(indices, device)
    return Layout(inputs, on_device[0], on_device[1], on_device[2], (len(rows), longest))


def gather(values: Tensor, places: Tensor) -> Tensor:
    """Rows of `values` [K, ...] at `places` [*]: an embedding, whose backward pass is deterministic on a GPU too."""
    return embedding(places, values.flatten(1)).unflatten(-1, values.shape[1:])


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    *,
    packing: Packing,
    sliding_window: int | None = None,
    position_ids: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Causal attention over whole rows, for one sequence of K packed tokens: [1, heads, K, D] -> [1, K, heads, D].

    A prompt's queries are computed once a row: a small price, as attention is the small part of a short row's cost, for
    the plain causal kernel. The positions are already in the queries and keys.
    """
    if sliding_window is not None:
        raise ValueError("packed rows have full attention only")

    def rows(packed: Tensor) -> Tensor:
        return gather(packed[0].transpose(0, 1), packing.rows).transpose(1, 2)

    attend = ALL_ATTENTION_FUNCTIONS[packing.implementation]
    output, _ = attend(module, rows(query), rows(key), rows(value), None, is_causal=True, **kwargs)
    return gather(output.flatten(0, 1), packing.places)[None], None


AttentionInterface.register(PACKED, packed_attention)


def packed_implementation(model: PreTrainedModel) -> str | None:
    """The attention that whole rows get when `model` computes packed ones; None where it cannot.

    It is tried, not looked up: layers that mix tokens outside attention, or take a token's position from its column,
    give other hidden states than for padded rows, and a window on attention raises. Chunks are longer than the trial.
    """
    implementation = model.config._attn_implementation
    in_chunks = getattr(model.config.get_text_config(), "attention_chunk_size", None)
    if implementation not in CAUSAL_WITHOUT_MASK or in_chunks:
        return None
    rows = [TrainingRow(prompt, completion, [], []) for prompt, completion in TRIAL]
    padded = padded_layout(rows, model.device)
    packed = packed_layout(rows, model.device, implementation)

    def hidden(layout: Layout) -> Tensor:
        states = model.base_model(**layout.inputs, use_cache=False).last_hidden_state
        return gather(states.flatten(0, 1), layout.predicting).float()

    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            expected = hidden(padded)
            with packed_rows(model):
                difference = hidden(packed) - expected
    except (RuntimeError, TypeError, ValueError):
        return None
    finally:
        model.train(training)
    return implementation if difference.norm() <= SAME * expected.norm() else None


@contextmanager
def packed_rows(model: PreTrainedModel) -> Iterator[None]:
    """Packed layouts work inside; the backward pass belongs inside too, since a checkpointed layer runs again there."""
    before = model.config._attn_implementation
    model.config._attn_implementation = PACKED
    try:
        yield
    finally:
        model.config._attn_implementation = before


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy to a GPU does not make the CPU wait: it comes from pinned memory."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
