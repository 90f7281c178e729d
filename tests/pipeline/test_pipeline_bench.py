"""The measurements of the pipeline run: quickly, one after the other, in the session that the tests have."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from bench.__main__ import PIPELINE_MEASURES
from bench.figures import PIPELINE_TARGETS
from bench.pipeline_growth import JOBS
from bench.scenario import Scenario


@pytest.fixture
def only_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each measurement begins and ends one of its own, which takes longer than what it does there."""
    monkeypatch.setattr("qpid_ha_pipeline.session.session", lambda *_words, **_settings: spark)
    monkeypatch.setattr(SparkSession, "stop", lambda _spark: None)


@pytest.mark.usefixtures("only_session")
def test_a_quick_run_measures_everything_that_has_a_target_and_each_job() -> None:
    figures = [figure for measure in PIPELINE_MEASURES.values() for figure in measure(Scenario.quick())]
    assert {figure.key for figure in figures} >= {*PIPELINE_TARGETS, *(f"growth_{job}_1" for job in JOBS)}
    assert all(figure.value > 0 for figure in figures)
