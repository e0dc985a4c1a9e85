"""The learner's model inputs: rows are packed if the model allows it, padded otherwise.

A packed micro-batch is one sequence without padding that holds a prompt once for all its responses. Linear layers and
norms treat each token alone and need no change; attention unpacks to whole, padded rows and packs its output again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import compress
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding
from transformers import AttentionInterface, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rl.rollouts import TrainingRow

PACKED = "tanka_packed"
# Eager attention is implemented in each model's own file and needs a mask, so its rows are padded.
CAUSAL_WITHOUT_MASK = ("sdpa", "flash_attention_2")
# Test rows (prompt, response). Two share a prompt, so packing moves every row but the first.
TRIAL = (([3, 1, 4, 1, 5], [9, 2, 6]), ([3, 1, 4, 1, 5], [5, 3]), ([8, 9], [7, 9, 3, 2]))
SAME = 0.05  # relative; bfloat16 rounding gives about 0.01, attending to another row far more


@dataclass(frozen=True)
class Packing:
    """Maps K packed tokens to B rows of L columns, and back.

    rows: [B, L] index of the packed token at each column (any at padding). places: [K] each token's flat index in
    the B x L grid. implementation: the attention applied to the rows.
    """

    rows: Tensor
    places: Tensor
    implementation: str


@dataclass(frozen=True)
class Layout:
    """B rows of up to T response tokens, C sampled ones in total, as a model input of S sequences x K tokens.

    inputs: keyword arguments of the model. predicting: [C] flat index in the S x K grid of the hidden state that
    predicts each sampled token. targets: [C] the sampled tokens. cells: [C] their flat indices in `shape` (B, T).
    """

    inputs: dict[str, Any]
    predicting: Tensor
    targets: Tensor
    cells: Tensor
    shape: tuple[int, int]

    def by_row(self, values: Tensor) -> Tensor:
        """[B, T] from [C] values, 0 at padding and at tokens that were not sampled."""
        flat = values.new_zeros(self.shape[0] * self.shape[1])
        return flat.index_put((self.cells,), values).view(self.shape)


def microbatches(rows: Sequence[TrainingRow], limit: int, packed: bool) -> Iterator[list[int]]:
    """Row indices of each micro-batch: rows of similar length, at most `limit` tokens.

    Packed: rows of a prompt stay together and the prompt counts once. Padded: padding counts.
    """
    prompts = [tuple(row.prompt_tokens) for row in rows]
    lengths = [row.length for row in rows]
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
    """One sequence per row, padded on the right, where causal attention cannot see the padding."""
    width = max(row.length for row in rows)
    tokens = torch.zeros(len(rows), width, dtype=torch.long)
    predicting: list[int] = []
    for r, row in enumerate(rows):
        ids = [*row.prompt_tokens, *row.response_tokens]
        tokens[r, : len(ids)] = torch.tensor(ids)
        before = range(r * width + len(row.prompt_tokens) - 1, r * width + len(ids) - 1)
        predicting += compress(before, row.mask)
    return _layout(rows, {"input_ids": to_device(tokens, device)}, predicting, device)


def packed_layout(rows: Sequence[TrainingRow], device: torch.device, implementation: str) -> Layout:
    """One sequence of all tokens, with each row's own position ids; a prompt comes before its first response."""
    width = max(row.length for row in rows)
    grid = torch.zeros(len(rows), width, dtype=torch.long)
    tokens: list[int] = []
    columns: list[int] = []  # each token's position in its row
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
        members = [*prompts[prompt], *add(row.response_tokens, r, len(prompt))]
        grid[r, : len(members)] = torch.tensor(members)
        predicting += compress(members[len(prompt) - 1 :], row.mask)
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
    longest = max(len(row.response_tokens) for row in rows)
    targets = [token for row in rows for token in compress(row.response_tokens, row.mask)]
    cells = [r * longest + t for r, row in enumerate(rows) for t, own in enumerate(row.mask) if own]
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
    """The attention implementation to use inside packed rows; None when `model` cannot be packed.

    Tested by running the model: layers that mix tokens outside attention, or derive positions from columns, give other
    hidden states than padded rows do, and windowed attention raises. Chunked attention is looked up in the config,
    because its chunks are longer than the test rows.
    """
    implementation = model.config._attn_implementation
    in_chunks = getattr(model.config.get_text_config(), "attention_chunk_size", None)
    if implementation not in CAUSAL_WITHOUT_MASK or in_chunks:
        return None
    rows = [TrainingRow(prompt, response, [True] * len(response), [], []) for prompt, response in TRIAL]
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
    """Inside, the model takes packed layouts. Run backward inside too, because checkpointed layers run again there."""
    before = model.config._attn_implementation
    model.config._attn_implementation = PACKED
    try:
        yield
    finally:
        model.config._attn_implementation = before


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on `device`; a copy to a GPU goes through pinned memory, so that the CPU does not wait."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
