"""What a broker's handlers know of the cluster and may have changed of it, on one node and in a cluster.

Owns the seam: controller.py stands behind it where one node is all there is, member/metadata.py on a node of a cluster.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from kbroker.cluster_state import ClusterState, TopicState
from kbroker.controller.features import FeatureUpdate
from kbroker.controller.topic_plans import TopicPlans
from kbroker.protocol.errors import ApiError
from kbroker.security.authorizer.acls import Acl, AclFilter, Entry, Pattern
from kbroker.security.tokens.token import Token

Listener = Callable[[ClusterState, ClusterState], None]
Revise = Callable[[Mapping[str, str]], dict[str, str]]
ReviseToken = Callable[[Token | None], Token | None]


class ClusterMetadata(TopicPlans, ABC):
    """The cluster's state as this broker knows it, and the way to change it.

    What changes it is work that ends with what was refused. One node may have decided by then and nobody know it yet:
    `published` tells when they do.
    """

    state: ClusterState
    """What is known to all, or on its way to them."""

    @abstractmethod
    def check_is_controller(self) -> None:
        """Raise NOT_CONTROLLER where another broker decides about topics."""

    def is_whole(self, name: str) -> bool:  # noqa: ARG002 - on one node all are
        """Tell whether all partitions of a topic are known that it had when this broker started."""
        return True

    @abstractmethod
    def subscribe(self, listener: Listener) -> None:
        """Call `listener(old, new)` after every change."""

    @abstractmethod
    def published(self) -> Awaitable[None] | None:
        """Return what is done once all that was decided so far is in effect; raises OSError, or later."""

    @abstractmethod
    def auto_create(self, name: str) -> None:
        """Create a topic that a client uses, with the broker's defaults or as an internal topic needs it."""

    @abstractmethod
    def auto_created(self, name: str) -> Awaitable[None] | None:
        """Return what is done once a topic that is being created by `auto_create` is there, or could not be created."""

    @abstractmethod
    def put_in_pieces(
        self, plans: Sequence[TopicState], _timeout_ms: int = ...
    ) -> Coroutine[Any, Any, dict[str, ApiError]]:
        """Create topics that were planned a while ago; return why some were not, or took too long."""

    @abstractmethod
    def validate_in_pieces(self, plans: Sequence[TopicState]) -> Coroutine[Any, Any, dict[str, ApiError]]:
        """Return why topics that were planned just now would not be created, beside what the plan itself has shown."""

    @abstractmethod
    def grow_in_pieces(
        self, plans: Sequence[TopicState], _timeout_ms: int = ...
    ) -> Coroutine[Any, Any, dict[str, ApiError]]:
        """Add the partitions that were planned a while ago; return why some were not, or took too long."""

    @abstractmethod
    def delete_in_pieces(
        self, topic_ids: Iterable[bytes], _timeout_ms: int = ...
    ) -> Coroutine[Any, Any, dict[bytes, ApiError]]:
        """Delete topics with their configs; return why some were not, or took too long. What is gone is no matter."""

    @abstractmethod
    def change_configs(self, kind: str, name: str, revise: Revise) -> Coroutine[Any, Any, None]:
        """Replace the dynamic configs of something; its kind and name are as in ClusterState. Raises ApiError.

        `revise` returns the new ones for those that stand, or raises ApiError; it may be asked several times.
        """

    @abstractmethod
    def update_features(
        self, updates: Sequence[FeatureUpdate], _node_id: int, *, validate_only: bool, _timeout_ms: int = ...
    ) -> Coroutine[Any, Any, None]:
        """Change finalized feature levels: all or none. Raises ApiError."""

    @abstractmethod
    def create_acls(self, acls: Mapping[Pattern, frozenset[Entry]]) -> Coroutine[Any, Any, dict[Pattern, ApiError]]:
        """Add ACLs that are valid; return why those of some patterns were not."""

    @abstractmethod
    def delete_acls(self, filters: Sequence[AclFilter]) -> Coroutine[Any, Any, list[list[Acl] | ApiError]]:
        """Remove the ACLs that filters mean; return for each filter those that were, or why it was not followed."""

    @abstractmethod
    def change_token(self, token_id: str, revise: ReviseToken) -> Coroutine[Any, Any, Token | None]:
        """Replace a delegation token by what `revise` makes of it, and return that; None is no token. Raises ApiError.

        `revise` may raise ApiError, and may be asked several times.
        """
