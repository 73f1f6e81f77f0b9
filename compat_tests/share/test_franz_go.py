"""franz-go's own tests of share groups, run against kbroker: another implementation of the client, in Go."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from compat_tests.compared import of_kfake
from compat_tests.harness.brokers import KBroker
from tests.tries import FORM

MODULE = "github.com/twmb/franz-go"
TIMEOUT_S = 600


@pytest.mark.skipif(FORM != "long", reason="builds a Go module, takes a minute: only with KBROKER_TESTS=long")
def test_the_tests_of_another_client_pass(kbroker_process: KBroker, tmp_path: Path) -> None:
    go = of_kfake.go()
    if go is None:
        pytest.skip("there is no Go here")
    listed = [go, "list", "-m", "-f", "{{.Dir}}", MODULE]
    subprocess.run([go, "mod", "download", MODULE], cwd=of_kfake.SOURCE, check=True, timeout=TIMEOUT_S)
    found = subprocess.run(listed, cwd=of_kfake.SOURCE, check=True, capture_output=True, text=True, timeout=60)
    shutil.copytree(found.stdout.strip(), tmp_path / "module", copy_function=shutil.copyfile)
    settings = {"KGO_SEEDS": kbroker_process.bootstrap, "KGO_TEST_RF": "1", "KGO_TEST_MAX_TOPIC_PARTS": "3"}
    done = subprocess.run(
        [go, "test", "-v", "-count=1", "-run=TestShareGroup", f"-timeout={TIMEOUT_S - 30}s", "."],
        cwd=tmp_path / "module" / "pkg" / "kgo",
        env={**os.environ, **settings, "KGO_TEST_RECORDS": "20000"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    passed = re.findall(r"^--- PASS: (\w+)", done.stdout, re.MULTILINE)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert {*passed} == {f"TestShareGroup{each}" for each in ("", "ETL", "AckOnClose", "OffsetsAdmin")}
