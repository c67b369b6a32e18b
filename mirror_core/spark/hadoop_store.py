"""Small files on a Hadoop file system, through the driver, with Spark's credentials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext

from mirror_core.evidence.file_store import Folder, check_inside, is_url, open_local_folder, refuse_password
from mirror_core.model.errors import BadRequest
from mirror_core.model.files import Unwritable
from mirror_core.spark.session import format_first_line, get_spark_context

_HIDDEN_PREFIXES: Final = ("_", ".")
_FILE_NOT_FOUND_CLASS: Final = "java.io.FileNotFoundException"


def open_private_folder(master: str, conf: Mapping[str, str], location: str) -> Folder:
    """Starts Spark only for URLs."""
    if is_url(location):
        return HadoopFolder(get_spark_context("mirrorbook-evidence", master, None, conf), location, private=True)
    return open_local_folder(location, private=True)


class HadoopFolder:
    """BadRequest when Spark has no such file system.

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
            root = self._make_path("")
            self._file_system: Any = root.getFileSystem(self._conf)
            self._root = str(self._file_system.makeQualified(root).toString())
        except (Py4JError, OSError) as error:
            raise BadRequest(
                f"{url}: Spark cannot use this file system: {format_first_line(error)}; give the jars it needs with"
                " --conf spark.jars.packages=..., and its settings with --conf spark.hadoop.fs...."
            ) from None

    def check(self, what: str, advice: str) -> None:
        """Creates the folder: only the file system knows whether that is allowed."""
        with self._report_write_errors(what, "", advice):
            self._file_system.mkdirs(self._make_path(""))

    def write(self, what: str, name: str, content: bytes, advice: str) -> None:
        folder, _, base_name = name.rpartition("/")
        temporary_name = f"{folder}/_{base_name}.{self._java.java.util.UUID.randomUUID().toString()}".removeprefix("/")
        with self._report_write_errors(what, name, advice):
            if self._private:
                self._file_system.mkdirs(self._make_path(folder), self._make_permission("700"))
            out = self._file_system.create(self._make_path(temporary_name), False)
            try:
                if self._private:
                    self._file_system.setPermission(self._make_path(temporary_name), self._make_permission("600"))
                out.write(content)
                out.hsync() if self._file_system.getScheme() == "hdfs" else out.flush()
            finally:
                out.close()
            self._rename(temporary_name, name)

    def read(self, name: str) -> bytes:
        with self._report_read_errors(name):
            stream = self._file_system.open(self._make_path(name))
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

    def remove(self, what: str, name: str, advice: str) -> None:
        with self._report_write_errors(what, name, advice):
            self._file_system.delete(self._make_path(name), False)

    def names(self, under: str = "") -> list[str]:
        with self._report_read_errors(under):
            if not self._file_system.exists(self._make_path(under)):
                return []
            names, files = [], self._file_system.listFiles(self._make_path(under), True)
            while files.hasNext():
                path = files.next().getPath()
                if not path.getName().startswith(_HIDDEN_PREFIXES):
                    names.append(str(path.toString()).removeprefix(f"{self._root}/"))
            return sorted(names)

    def _rename(self, temporary_name: str, name: str) -> None:
        """Atomic where the file system can do that. Files of object stores appear when they are closed."""
        rename_option = getattr(self._fs_package, "Options$Rename")
        options = self._new_array(rename_option, 1)
        options[0] = rename_option.OVERWRITE
        context = self._fs_package.FileContext.getFileContext(self._file_system.getUri(), self._conf)
        context.rename(self._make_path(temporary_name), self._make_path(name), options)

    def _make_permission(self, octal: str) -> Any:
        return self._fs_package.permission.FsPermission(octal)

    def _make_path(self, name: str) -> Any:
        return self._fs_package.Path(f"{self.where}/{check_inside(name)}" if name else self.where)

    @contextmanager
    def _report_write_errors(self, subject: str, name: str, advice: str) -> Iterator[None]:
        try:
            yield
        except (Py4JError, OSError) as error:
            location = f"{self.where}/{name}".rstrip("/")
            raise Unwritable(f"{subject}: {location} cannot be written: {format_first_line(error)}: {advice}") from None

    @contextmanager
    def _report_read_errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except Py4JJavaError as error:
            text = f"{self.where}/{name}: {format_first_line(error)}"
            if error.java_exception.getClass().getName() == _FILE_NOT_FOUND_CLASS:
                raise FileNotFoundError(text) from None
            raise OSError(text) from None
        except Py4JError as error:
            raise OSError(f"{self.where}/{name}: {format_first_line(error)}") from None
