"""The launcher while its cluster runs: it watches the processes, and executes the requests of other commands.

Owns the loop, and the files that describe the cluster. A broker that has ended is not restarted until a command
requests it. If ZooKeeper ends, the launcher stops the cluster.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kbroker.launcher.child import LauncherError
from kbroker.launcher.control import ControlSocket, Request
from kbroker.launcher.description import FILE_NAME, remove_stale, write_description
from kbroker.launcher.signals import Stopped, StopSignals
from kbroker.launcher.start_and_stop import LocalCluster

_CHECK_S: Final = 0.2


class Supervisor:
    """Watches a running cluster. `report` receives a line of text for each event."""

    def __init__(
        self,
        cluster: LocalCluster,
        control: ControlSocket,
        signals: StopSignals,
        ready_file: Path | None,
        report: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._control = control
        self._signals = signals
        self._files = [cluster.plan.directory / FILE_NAME, *([ready_file] if ready_file else [])]
        self._ready_file = ready_file
        self._report = report
        self._pids: dict[int, int | None] = {}

    def start(self) -> None:
        """Start the cluster. Meanwhile, handle stop signals but no requests. Raises LauncherError, Stopped."""
        if self._ready_file is not None:
            remove_stale(self._ready_file)
        self._cluster.pause = self._pause
        try:
            self._cluster.start()
        finally:
            self._cluster.pause = self._signals.pause

    def _pause(self, seconds: float) -> None:
        if self._signals.wait(self._control.fileno(), seconds):
            self._control.answer(self._handle_while_starting)
            self._signals.pause(0)

    def _handle_while_starting(self, request: Request) -> Request:
        if request.get("do") == "stop" and request.get("node_id") is None:
            return self._handle(request)
        return {"error": "the cluster is still starting"}

    def run(self) -> None:
        """Run until a stop is ordered. Raises LauncherError if the cluster cannot continue."""
        try:
            self._describe()
            while True:
                if self._signals.wait(self._control.fileno(), _CHECK_S):
                    self._control.answer(self._handle)
                self._watch()
        except Stopped:
            pass
        finally:
            if self._ready_file is not None:
                with contextlib.suppress(OSError):
                    self._ready_file.unlink()

    def _describe(self) -> None:
        """Write the description files."""
        self._pids = {node_id: child.pid for node_id, child in self._cluster.brokers.items()}
        for file in self._files:
            write_description(self._cluster.describe(), file)

    def _watch(self) -> None:
        own = self._cluster.own_zookeeper
        if own is not None and not own.running:
            raise LauncherError(f"ZooKeeper has ended ({own.how_ended()}): {own.last_words()} (see {own.log_file})")
        ended = [each for each, child in self._cluster.brokers.items() if self._pids[each] and not child.running]
        for node_id in ended:
            child = self._cluster.child(node_id)
            self._report(f"{child.name} has ended: {child.describe_end()}")
        if ended:
            self._describe()

    def _handle(self, request: Request) -> Request:
        """Execute a request. A request to stop everything is answered before it is executed."""
        try:
            return self._carry_out(str(request.get("do")), request.get("node_id"))
        except LauncherError as error:
            self._describe()
            return {"error": str(error)}

    def _carry_out(self, action: str, node_id: object) -> Request:
        if action == "stop" and node_id is None:
            self._report("stop requested")
            self._signals.requested = True
            return {}
        if not isinstance(node_id, int):
            raise LauncherError(f"{action} takes the id of a broker")
        child = self._cluster.child(node_id)
        if action == "kill":
            self._cluster.kill_broker(node_id)
            self._report(f"{child.name} was killed")
        elif action == "stop":
            self._cluster.stop_broker(node_id)
        elif action == "restart":
            self._cluster.stop_broker(node_id)
            self._report(f"starting {child.name}")
            self._cluster.start_broker(node_id)
            self._report(f"{child.name} serves again")
        else:
            raise LauncherError(f"{action!r} is no command of a launcher")
        self._describe()
        return {"pid": child.pid}
