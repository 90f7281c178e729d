"""Stories about the archive of classes that Java has here; test_session.py shows that a session uses it."""

from __future__ import annotations

import os
from pathlib import Path

from spark_home import archive_of, use_class_archive


def test_a_java_that_makes_no_archive_goes_without(tmp_path: Path) -> None:
    before = archive_of(os.environ)
    maker = tmp_path / "maker.py"
    maker.write_text("raise SystemExit(1)")
    environment = {**os.environ, "JDK_JAVA_OPTIONS": "-XX:+UseSerialGC"}
    use_class_archive(environment, maker)
    assert environment["JDK_JAVA_OPTIONS"] == "-XX:+UseSerialGC"
    assert before is None or Path(before).exists()


def test_another_home_of_spark_has_no_archive(tmp_path: Path) -> None:
    environment = {**os.environ, "SPARK_HOME": str(tmp_path), "JDK_JAVA_OPTIONS": ""}
    use_class_archive(environment)
    assert archive_of(environment) is None
