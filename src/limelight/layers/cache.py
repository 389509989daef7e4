"""The key/value cache of a decoder, as explicit state.

Rows of different length are right-aligned, so that every new token goes to the same column and
causal masks, aligned on the last key, mean the same as without a cache:

    row 0   · · a b c d | next
    row 1   e f g h i j | next
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from limelight.checks import check_whole, shape_text
from limelight.errors import OptionError, ShapeError


class KeyValues:
    """Keys `b g j d` and values `b g j e` of one attention layer, in storage that doubles.

    With a `window` only the keys that a new query can still see are kept: `window` before itself.
    """

    def __init__(self, window: int | None = None, capacity: int = 64) -> None:
        self.window = window
        self._capacity = capacity
        self._keys: Tensor | None = None
        self._values: Tensor | None = None
        self._end = 0
        self._columns: tuple[Tensor, Tensor] | None = None

    @property
    def length(self) -> int:
        """How many columns are stored."""
        return self._end

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store new tokens; returns the keys and values that their queries may see."""
        if key.requires_grad or value.requires_grad:
            raise OptionError(
                "a cache keeps keys and values without gradient: "
                "call the model under torch.no_grad() or torch.inference_mode()"
            )
        if self._columns is not None:
            self._scatter(key, value, *self._columns)
            return key, value
        new = key.shape[2]
        keys, values = self._reserve(key, value, new)
        keys.narrow(2, self._end, new).copy_(key)
        values.narrow(2, self._end, new).copy_(value)
        self._end += new
        seen = self._end if self.window is None else min(self._end, self.window + new)
        return keys.narrow(2, self._end - seen, seen), values.narrow(2, self._end - seen, seen)

    def stored(self) -> tuple[Tensor, Tensor]:
        """All keys and values stored."""
        if self._keys is None or self._values is None:
            raise OptionError("the cache is empty: nothing was appended")
        return self._keys.narrow(2, 0, self._end), self._values.narrow(2, 0, self._end)

    def expect_packed(self, rows: Tensor, columns: Tensor) -> None:
        """The next append is packed: its token t belongs to `rows[t]`, `columns[t]`."""
        if self._end:
            raise OptionError(f"packed prompts need an empty cache, found {self._end} tokens in it")
        self._columns = rows, columns

    def select(self, rows: Tensor) -> None:
        """Keep these batch rows, in this order; a row may be repeated."""
        if self._keys is not None and self._values is not None:
            self._keys = self._keys.index_select(0, rows.to(self._keys.device))
            self._values = self._values.index_select(0, rows.to(self._values.device))

    def _reserve(self, key: Tensor, value: Tensor, new: int) -> tuple[Tensor, Tensor]:
        if self._keys is None or self._values is None:
            capacity = max(self._capacity, new)
            self._keys = key.new_empty(*key.shape[:2], capacity, key.shape[3])
            self._values = value.new_empty(*value.shape[:2], capacity, value.shape[3])
            return self._keys, self._values
        for name, new_part, stored in (("key", key, self._keys), ("value", value, self._values)):
            if new_part.shape[:2] != stored.shape[:2] or new_part.shape[3] != stored.shape[3]:
                b, g, _, d = stored.shape
                raise ShapeError(
                    f"{name} has shape {shape_text(new_part)}, "
                    f"expected ({b}, {g}, any, {d}) as in the cache"
                )
        if self._end + new > self._keys.shape[2]:
            kept = self._end if self.window is None else min(self._end, self.window)
            capacity = max(self._keys.shape[2], 2 * (kept + new))
            self._keys = _reallocated(self._keys, self._end - kept, kept, capacity)
            self._values = _reallocated(self._values, self._end - kept, kept, capacity)
            self._end = kept
        return self._keys, self._values

    def _scatter(self, key: Tensor, value: Tensor, rows: Tensor, columns: Tensor) -> None:
        """Packed `1 g total d` into right-aligned rows; what no token fills is zero."""
        batch, longest = int(rows[-1]) + 1, int(columns.max()) + 1
        capacity = max(self._capacity, longest)
        self._keys = key.new_zeros(batch, key.shape[1], capacity, key.shape[3])
        self._values = value.new_zeros(batch, value.shape[1], capacity, value.shape[3])
        self._keys[rows, :, columns] = key[0].transpose(0, 1)
        self._values[rows, :, columns] = value[0].transpose(0, 1)
        self._end, self._columns = longest, None


def _reallocated(tensor: Tensor, start: int, length: int, capacity: int) -> Tensor:
    b, g, _, d = tensor.shape
    result = tensor.new_empty(b, g, capacity, d)
    result.narrow(2, 0, length).copy_(tensor.narrow(2, start, length))
    return result


class BlockCache(NamedTuple):
    """The cache of one block, for attention to the text and to a memory."""

    self_attention: KeyValues
    cross_attention: KeyValues


class Cache:
    """The keys and values of every layer of a decoder, and how many tokens each row has.

    It starts empty and is passed to the model with each piece of text; the model appends to it.

    Args:
        layers: how many blocks the model has.
        window: how many tokens back a query looks, or None for all (`Config.window`).
        capacity: tokens to reserve storage for; it doubles when it is full.

    >>> import torch, limelight as ll
    >>> model = ll.Decoder(ll.Config.gpt2(vocabulary=50, width=8, layers=2, heads=2))
    >>> tokens = torch.randint(50, (1, 6))
    >>> cache = ll.Cache(layers=2)
    >>> with torch.inference_mode():
    ...     whole = model(tokens)
    ...     first = model(tokens[:, :4], cache=cache)
    ...     rest = model(tokens[:, 4:], cache=cache)
    >>> torch.allclose(whole, torch.cat((first, rest), dim=1), atol=1e-5)
    True
    >>> cache.length
    6
    """

    def __init__(self, layers: int, *, window: int | None = None, capacity: int = 64) -> None:
        check_whole("cache layers", layers, 1, 1 << 16)
        check_whole("cache capacity", capacity)
        if window is not None:
            check_whole("cache window", window, 0)
        self.window = window
        self.blocks = [
            BlockCache(KeyValues(window, capacity), KeyValues(None, 1)) for _ in range(layers)
        ]
        self.length = 0
        """Columns read so far: the tokens of the longest row."""
        self.lengths: list[int] | None = None
        """Tokens of each row, where rows differ."""

    def visible(self, new: int) -> int:
        """How many columns the next `new` queries can attend to, their own included."""
        return self.length + new if self.window is None else min(self.length, self.window) + new

    def begin_packed(self, lengths: Sequence[int], device: torch.device) -> None:
        """The next piece is packed prompts of these lengths; each becomes a row."""
        counts = torch.tensor(list(lengths), device=device)
        rows = torch.arange(len(lengths), device=device).repeat_interleave(counts)
        columns = (
            torch.arange(sum(lengths), device=device) - (counts.cumsum(0) - max(lengths))[rows]
        )
        for block in self.blocks:
            block.self_attention.expect_packed(rows, columns)

    def advance(self, new: int) -> None:
        """Count `new` columns as read; the model calls this after its last block."""
        self.length += new
        if self.lengths is not None:
            self.lengths = [length + new for length in self.lengths]

    def advance_packed(self, lengths: Sequence[int]) -> None:
        """Count packed prompts as read."""
        self.length = max(lengths)
        self.lengths = None if min(lengths) == self.length else list(lengths)

    def select(self, rows: Tensor) -> None:
        """Keep these batch rows, in this order: drops finished rows, follows a beam search.

        Args:
            rows: whole numbers, one for each row that the cache will have; repeats allowed.
        """
        for block in self.blocks:
            for stored in block:
                stored.select(rows)
        if self.lengths is not None:
            self.lengths = [self.lengths[row] for row in rows.tolist()]
