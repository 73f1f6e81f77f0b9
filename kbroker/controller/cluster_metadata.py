"""The interface of a broker's handlers to the cluster state and its changes, on one node and in a cluster.

Owns the interface. controller.py implements it for a single node, member/metadata.py for a node of a cluster; both plan
topics in the same way (topic_plans.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from kbroker.cluster_state import ClusterState, TopicState
from kbroker.controller.features import FeatureUpdate
from kbroker.protocol.errors import ApiError
from kbroker.security.authorizer.acls import Acl, AclFilter, Entry, Pattern
from kbroker.security.tokens.token import Token

Listener = Callable[[ClusterState, ClusterState], None]
Revise = Callable[[Mapping[str, str]], dict[str, str]]
ReviseToken = Callable[[Token | None], Token | None]


class ClusterMetadata(ABC):
    """The cluster's state as this broker knows it, and the methods to change it.

    The methods for changes return errors. On one node a change may be decided before it is visible; `published` returns
    a future that is done when the change is visible.
    """

    state: ClusterState
    """The published state."""
    decided: ClusterState
    """The state after all decisions.

    Some decisions might not be in effect yet, so this state serves only to make further decisions.
    """

    @property
    @abstractmethod
    def is_controller(self) -> bool:
        """Whether this broker is the controller now."""

    @abstractmethod
    def check_is_controller(self) -> None:
        """Raise NOT_CONTROLLER if another broker decides about topics."""

    @abstractmethod
    def is_whole(self, name: str) -> bool:
        """Whether this broker knows all partitions that a topic had when the broker started."""

    @abstractmethod
    def subscribe(self, listener: Listener) -> None:
        """Call `listener(old, new)` after every change."""

    @abstractmethod
    def published(self) -> Awaitable[None] | None:
        """Return a future that is done when all decisions so far are in effect.

        Return None if they already are in effect. Raises OSError, or sets it on the future.
        """

    # --- topics

    @abstractmethod
    def check_new_name(self, name: str, beside: Container[str] = ()) -> None:
        """Raise ApiError if a new topic cannot have this name, or if the name collides with a name in `beside`."""

    @abstractmethod
    def plan_topic(
        self,
        name: str,
        num_partitions: int,
        replication_factor: int,
        assignments: Mapping[int, Sequence[int]] | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> TopicState:
        """Return the plan of a requested topic; store nothing. Raises ApiError where Kafka refuses the request.

        -1 as the number of partitions or replicas means the broker's default. If `assignments` (partition -> replicas)
        is given, both numbers must be -1.
        """

    @abstractmethod
    def plan_auto(self, name: str) -> TopicState:
        """Plan a topic that a client uses, with the broker's defaults or an internal topic's settings."""

    @abstractmethod
    def plan_growth(self, name: str, count: int, assignments: Sequence[Sequence[int]] | None) -> TopicState:
        """Return the topic with `count` partitions in total; store nothing.

        Raises ApiError where Kafka refuses the change.
        """

    @abstractmethod
    def auto_create(self, name: str) -> None:
        """Create a topic that a client uses, with the broker's defaults or an internal topic's settings."""

    @abstractmethod
    def auto_created(self, name: str) -> Awaitable[None] | None:
        """Return a future that is done once a topic of `auto_create` exists, or could not be created."""

    @abstractmethod
    def put_in_pieces(
        self, plans: Sequence[TopicState], timeout_ms: int = ...
    ) -> Coroutine[Any, Any, dict[str, ApiError]]:
        """Create topics that were planned earlier.

        Return the errors of topics that were not created, or not created in time.
        """

    @abstractmethod
    def validate_in_pieces(self, plans: Sequence[TopicState]) -> Coroutine[Any, Any, dict[str, ApiError]]:
        """Return the errors of planned topics that could not be created.

        The errors that the plan found are not included.
        """

    @abstractmethod
    def grow_in_pieces(
        self, plans: Sequence[TopicState], timeout_ms: int = ...
    ) -> Coroutine[Any, Any, dict[str, ApiError]]:
        """Add partitions that were planned earlier.

        Return the errors of topics that were not extended, or not extended in time.
        """

    @abstractmethod
    def delete_in_pieces(
        self, topic_ids: Iterable[bytes], timeout_ms: int = ...
    ) -> Coroutine[Any, Any, dict[bytes, ApiError]]:
        """Delete topics with their configs.

        Return an error for each topic that was not deleted, or not deleted in time. Missing topics are ignored.
        """

    # --- configs, features, rights, tokens

    @abstractmethod
    def change_configs(self, kind: str, name: str, revise: Revise) -> Coroutine[Any, Any, None]:
        """Replace the dynamic configs of an entity; the entity's kind and name are as in ClusterState. Raises ApiError.

        `revise` returns the new configs for the current configs, or raises ApiError. `revise` may be called several
        times.
        """

    @abstractmethod
    def update_features(
        self, updates: Sequence[FeatureUpdate], *, validate_only: bool, timeout_ms: int = ...
    ) -> Coroutine[Any, Any, None]:
        """Change all of these finalized feature levels, or none. Raises ApiError."""

    @abstractmethod
    def create_acls(self, acls: Mapping[Pattern, frozenset[Entry]]) -> Coroutine[Any, Any, dict[Pattern, ApiError]]:
        """Add valid ACLs; return the errors of patterns whose ACLs were not added."""

    @abstractmethod
    def delete_acls(self, filters: Sequence[AclFilter]) -> Coroutine[Any, Any, list[list[Acl] | ApiError]]:
        """Remove the ACLs that match filters; return the removed ACLs of each filter, or its error."""

    @abstractmethod
    def change_token(self, token_id: str, revise: ReviseToken) -> Coroutine[Any, Any, Token | None]:
        """Replace a delegation token with the result of `revise`, and return it; None means no token. Raises ApiError.

        `revise` may raise ApiError, and may be called several times.
        """
