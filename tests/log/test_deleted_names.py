"""A slice reads the file from which it was created, or fails."""

from __future__ import annotations

import pytest

from kbroker.log.log_config import LogConfig
from kbroker.log.log_slice import LogSlice
from kbroker.log.open_files import OpenFiles
from kbroker.log.segment.segment import Segment


def test_a_name_that_another_deleted_segment_has_taken_is_not_read(tmp_path):
    """Two compactions of one segment within file.delete.delay.ms leave two files with the same name."""
    config, files = LogConfig.from_map({}), OpenFiles(100)
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(b"A" * 100)
    first = Segment.open(str(tmp_path), 0, config, 0, files)
    early, late = LogSlice(first, 0, 50, 0, 10), LogSlice(first, 0, 50, 0, 10)
    first.mark_replaced()
    assert bytes(early.view()) == b"A" * 50
    first.release()
    path.write_bytes(b"B" * 80)
    Segment.open(str(tmp_path), 0, config, 0, files).mark_replaced()
    with pytest.raises(OSError, match="another segment"):
        late.view()
