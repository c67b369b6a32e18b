"""Files on a Hadoop file system (`s3a://`, HDFS), through the driver, so small ones only.

Credentials are Spark's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext

from mirror_core.evidence.folders import Folder, check_inside, is_url, local_folder, refuse_password
from mirror_core.model.errors import BadRequest
from mirror_core.model.files import Unwritable
from mirror_core.spark.session import context, first_line

_HIDDEN: Final = ("_", ".")
_MISSING: Final = "java.io.FileNotFoundException"


def private_folder(master: str, conf: Mapping[str, str], place: str) -> Folder:
    """Starts Spark only for URLs."""
    if is_url(place):
        return HadoopFolder(context("mirrorbook-evidence", master, None, conf), place, private=True)
    return local_folder(place, private=True)


class HadoopFolder:
    """An `evidence.file_store.Folder`. BadRequest when Spark has no such file system.

    `private`: readable by this user only. Object stores ignore it.
    """

    def __init__(self, context: SparkContext, url: str, *, private: bool = False) -> None:
        refuse_password(url)
        self.where = url.rstrip("/")
        self._private = private
        gateway: Any = context._gateway
        self._java: Any = gateway.jvm
        self._new_array = gateway.new_array
        self._fs_package: Any = self._java.org.apache.hadoop.fs
        self._conf: Any = context._jsc.hadoopConfiguration()
        try:
            root = self._path("")
            self._files: Any = root.getFileSystem(self._conf)
            self._root = str(self._files.makeQualified(root).toString())
        except (Py4JError, OSError) as error:
            raise BadRequest(
                f"{url}: Spark cannot use this file system: {first_line(error)}; give the jars it needs with --conf "
                "spark.jars.packages=..., and its settings with --conf spark.hadoop.fs...."
            ) from None

    def check(self, what: str, advice: str) -> None:
        """Creates the folder: only the file system knows whether that is allowed."""
        with self._writing(what, "", advice):
            self._files.mkdirs(self._path(""))

    def write(self, what: str, name: str, content: bytes, advice: str) -> None:
        folder, _, last = name.rpartition("/")
        fresh = f"{folder}/_{last}.{self._java.java.util.UUID.randomUUID().toString()}".removeprefix("/")
        with self._writing(what, name, advice):
            if self._private:
                self._files.mkdirs(self._path(folder), self._rights("700"))
            out = self._files.create(self._path(fresh), False)
            try:
                if self._private:
                    self._files.setPermission(self._path(fresh), self._rights("600"))
                out.write(content)
                out.hsync() if self._files.getScheme() == "hdfs" else out.flush()
            finally:
                out.close()
            self._rename(fresh, name)

    def read(self, name: str) -> bytes:
        with self._reading(name):
            stream = self._files.open(self._path(name))
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

    def remove(self, what: str, name: str, advice: str) -> None:
        with self._writing(what, name, advice):
            self._files.delete(self._path(name), False)

    def names(self, under: str = "") -> list[str]:
        with self._reading(under):
            if not self._files.exists(self._path(under)):
                return []
            found, files = [], self._files.listFiles(self._path(under), True)
            while files.hasNext():
                path = files.next().getPath()
                if not path.getName().startswith(_HIDDEN):
                    found.append(str(path.toString()).removeprefix(f"{self._root}/"))
            return sorted(found)

    def _rename(self, fresh: str, name: str) -> None:
        """Atomic where the file system can do that. Files of object stores appear when they are closed."""
        kind = getattr(self._fs_package, "Options$Rename")
        options = self._new_array(kind, 1)
        options[0] = kind.OVERWRITE
        context = self._fs_package.FileContext.getFileContext(self._files.getUri(), self._conf)
        context.rename(self._path(fresh), self._path(name), options)

    def _rights(self, octal: str) -> Any:
        return self._fs_package.permission.FsPermission(octal)

    def _path(self, name: str) -> Any:
        return self._fs_package.Path(f"{self.where}/{check_inside(name)}" if name else self.where)

    @contextmanager
    def _writing(self, what: str, name: str, advice: str) -> Iterator[None]:
        try:
            yield
        except (Py4JError, OSError) as error:
            where = f"{self.where}/{name}".rstrip("/")
            raise Unwritable(f"{what}: {where} cannot be written: {first_line(error)}: {advice}") from None

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        try:
            yield
        except Py4JJavaError as error:
            text = f"{self.where}/{name}: {first_line(error)}"
            if error.java_exception.getClass().getName() == _MISSING:
                raise FileNotFoundError(text) from None
            raise OSError(text) from None
        except Py4JError as error:
            raise OSError(f"{self.where}/{name}: {first_line(error)}") from None
