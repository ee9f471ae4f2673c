"""The project's pipelines by name (explicit: composed pipelines must find their parts)."""

from __future__ import annotations

from kedro.pipeline import Pipeline

from detpipe.pipelines import (
    compare,
    convert,
    data,
    evaluate,
    evaluate_files,
    export,
    predict,
    preview,
    report,
    train,
    verify,
)  # fmt: skip


def register_pipelines() -> dict[str, Pipeline]:
    """Every pipeline runs alone, because its inputs are files; ``train`` is the whole of them."""
    scoring = evaluate.create_pipeline() + report.create_pipeline() + verify.create_pipeline()
    whole = data.create_pipeline() + train.create_pipeline() + scoring
    return {
        "data": data.create_pipeline(),
        "convert": convert.create_pipeline(),
        "train": whole,
        "evaluate": scoring,
        "evaluate_files": evaluate_files.create_pipeline(),
        "report": report.create_pipeline() + verify.create_judge_pipeline(),
        "verify": verify.create_pipeline(),
        "compare": compare.create_pipeline(),
        "predict": predict.create_pipeline(),
        "export": export.create_pipeline(),
        "preview": preview.create_pipeline(),
        "lr_range": preview.create_lr_range_pipeline(),
        "batch_size": preview.create_batch_size_pipeline(),
        "__default__": whole,
    }
