"""Files below a path on S3, by Hadoop's S3A and by S3A's own client.

Owns the operations for which S3 differs from a file system. One conditional PUT (`If-None-Match: *`) writes a file, so
that only one of several writers creates it, and no reader sees a part of it. A rename is a copy and a deletion; an
interrupted move is completed later. A lock needs a conditional replacement: a file is replaced only if it is still the
same (`If-Match`). Credentials, endpoint and region are those of S3A (`fs.s3a.*`). Data files go through S3A only.
"""

from __future__ import annotations

from typing import Any, Final

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.hadoop_files import HadoopFiles

_LOST: Final = frozenset({409, 412})
"""The HTTP statuses if another writer has written the file, or is writing it at this moment."""
_MISSING: Final = 404


class S3Files(HadoopFiles):
    """Implements LocalFiles through the JVM. `claim` and `write` also raise FileExistsError."""

    def __init__(self, session: Any, fs: Any, root: Any) -> None:
        super().__init__(session, fs, root)
        self._bucket = root.toUri().getHost()
        self._client = fs.getS3AInternals().getAmazonS3Client("kbroker")
        sdk = session._jvm.software.amazon.awssdk  # noqa: SLF001 - pyspark has no other access to S3A's client
        self._models = sdk.services.s3.model
        self._body = sdk.core.sync.RequestBody
        self._with_headers = sdk.awscore.AwsRequestOverrideConfiguration

    def write(self, relative: str, text: str) -> None:
        self._create(self._at(relative), text)

    def move(self, source: str, target: str) -> None:
        here, goal = self._at(source), self._at(target)
        if self._fs.exists(goal):  # a job copied the file, and was killed before it deleted the source
            if self._fs.getFileStatus(here).getLen() != self._fs.getFileStatus(goal).getLen():
                raise PipelineError(f"cannot move {here.toString()} to {goal.toString()}: there is another file")
            self._fs.delete(here, False)
        else:
            super().move(source, target)

    def replace(self, source: str, target: str) -> None:
        here, goal = self._at(source), self._at(target)
        data = self._fs.open(here)
        try:
            out = self._fs.create(goal, True)
            try:
                self._io.copyLarge(data, out)
            finally:
                out.close()
        finally:
            data.close()
        self._fs.delete(here, False)

    def tagged(self, relative: str) -> tuple[str, str] | None:
        request = self._models.GetObjectRequest.builder().bucket(self._bucket).key(self._key(self._at(relative)))
        try:
            found = self._client.getObjectAsBytes(request.build())
        except Exception as err:
            if _status(err) == _MISSING:
                return None
            raise
        return str(found.asUtf8String()), str(found.response().eTag())

    def swap(self, relative: str, text: str, tag: str | None) -> str | None:
        header = ("If-None-Match", "*") if tag is None else ("If-Match", tag)
        return self._put(self._at(relative), text, *header)

    def _create(self, path: Any, text: str) -> None:
        if self._put(path, text, "If-None-Match", "*") is None:
            raise FileExistsError

    def _put(self, path: Any, text: str, header: str, value: str) -> str | None:
        """Write an object under a condition. Return its tag, or None if the condition does not hold."""
        # Do not use the builder's own methods, which older versions of the SDK lack.
        condition = self._with_headers.builder().putHeader(header, value).build()
        request = self._models.PutObjectRequest.builder().bucket(self._bucket).key(self._key(path))
        try:
            done = self._client.putObject(request.overrideConfiguration(condition).build(), self._body.fromString(text))
        except Exception as err:
            if _status(err) in _LOST or (_status(err) == _MISSING and header == "If-Match"):
                return None
            raise
        return str(done.eTag())

    @staticmethod
    def _key(path: Any) -> str:
        return str(path.toUri().getPath()).lstrip("/")


def _status(err: Exception) -> int:
    """Return the HTTP status in an error of S3's client; 0 without one."""
    try:
        return int(err.java_exception.statusCode())  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001 - any other error of Java or of the connection to it
        return 0
