"""Java's PriorityQueue: its order among equal elements decides which member gets a task.

Owns the heap's moves, because Python's heapq orders equal elements differently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class JavaHeap(Generic[T]):
    """A heap. The key of an element may change only while the element is not in the heap."""

    def __init__(self, elements: Iterable[T], key: Callable[[T], float]) -> None:
        self._key = key
        self._heap: list[T] = []
        for each in elements:
            self.add(each)

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, element: T) -> None:
        """Add an element. It stays below its parent if both have the same key."""
        heap, key = self._heap, self._key
        heap.append(element)
        at, own = len(heap) - 1, key(element)
        while at > 0:
            parent = (at - 1) >> 1
            if own >= key(heap[parent]):
                break
            heap[at] = heap[parent]
            at = parent
        heap[at] = element

    def poll(self) -> T:
        """Remove and return an element with the smallest key. Raises IndexError if the heap is empty."""
        heap, key = self._heap, self._key
        found, last = heap[0], heap.pop()
        size = len(heap)
        if size:
            at, own, half = 0, key(last), size >> 1
            while at < half:
                child = 2 * at + 1
                if child + 1 < size and key(heap[child]) > key(heap[child + 1]):
                    child += 1
                if own <= key(heap[child]):
                    break
                heap[at] = heap[child]
                at = child
            heap[at] = last
        return found
