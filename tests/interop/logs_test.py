#!/usr/bin/env python3
"""Logs that other programs read: event files through the tensorboard package, CSV through Python's reader.

A short run is ended half-way and goes on, so that two event files stand for one run."""
import csv
import io
import json
import pathlib
import sys
import tempfile

from command import TINY_EXPERIMENT, Checks, run, skip

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    skip("the tensorboard package is not installed")

EXPERIMENT = TINY_EXPERIMENT + """      disable_tensorboard: false
      log_batch_size_to_tensorboard: true
      log_validation_ppl_to_tensorboard: true
      log_memory_to_tensorboard: true
      log_world_size_to_tensorboard: true
      log_timers_to_tensorboard: true
      moe_per_layer_logging: true
"""


def close(a, b):
    """Event files hold fp32."""
    return abs(a - b) <= 1e-6 * max(abs(a), abs(b), 1e-30)


def main():
    checks = Checks()
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        (work / "experiment.yaml").write_text(EXPERIMENT.format(folder=work))
        words = ("direct", "--", "train", "pretrain", "--config", work / "experiment.yaml", "--device", "cpu")
        run(*words, "--exit_interval", "5")
        run(*words)
        folder = work / "t/me/run"
        records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        steps = [each for each in records if "lm_loss" in each]
        evaluations = [each for each in records if "eval_loss" in each]

        events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0, "histograms": 0})
        events.Reload()
        checks.that(len(list((folder / "tensorboard").iterdir())) == 2, "a file for each part of the run")

        def scalar(tag):
            checks.that(tag in events.Tags()["scalars"], f"no series {tag}")
            return [(each.step, each.value) for each in events.Scalars(tag)] if tag in events.Tags()["scalars"] else []

        for tag, key in (("lm loss", "lm_loss"), ("learning-rate", "learning_rate"), ("grad-norm", "grad_norm"),
                         ("loss-scale", "loss_scale"), ("batch-size", "global_batch_size"),
                         ("load_balancing_loss", "load_balancing_loss"),
                         ("perf/throughput_tflops_per_gpu", "tflops_per_device"),
                         ("perf/tps_tokens_per_sec_per_gpu", "tokens_per_s_per_device"),
                         ("perf/iteration_time_ms", "elapsed_ms"), ("mem-max-allocated-bytes", "memory_peak_bytes")):
            found = scalar(tag)
            checks.that([step for step, _ in found] == [each["iteration"] for each in steps], f"{tag}: steps {found}")
            checks.that(all(close(value, each[key]) for (_, value), each in zip(found, steps)), f"{tag}: {found}")
        over_samples = scalar("lm loss vs samples")
        checks.that([step for step, _ in over_samples] == [each["consumed_samples"] for each in steps], f"{over_samples}")
        validation = scalar("lm loss validation")
        checks.that([step for step, _ in validation] == [each["iteration"] for each in evaluations], f"{validation}")
        checks.that(all(close(value, each["eval_loss"]) for (_, value), each in zip(validation, evaluations)),
                    f"{validation}")
        scalar("lm loss validation ppl")
        scalar("world-size")
        scalar("iteration-time")

        # Text and bars come as tensors in the reader's newer form.
        tags = events.Tags()
        text = [tag for tag in tags["tensors"] if tag.startswith("experiment")]
        checks.that(len(text) == 1, f"text of the experiment: {tags['tensors']}")
        if text:
            content = events.Tensors(text[0])[0].tensor_proto.string_val[0].decode()
            checks.that('"global_batch_size"' in content or "global_batch_size:" in content, content[:300])
        checks.that("moe/tokens by expert, layer 1" in tags["histograms"], f"{tags['histograms']}")
        for each in events.Histograms("moe/tokens by expert, layer 1"):
            bars = each.histogram_value
            checks.that(sum(bars.bucket) == bars.num and bars.num > 0, f"{bars}")
            checks.that(len(bars.bucket) == 4 and list(bars.bucket_limit) == [1, 2, 3, 4], f"{bars}")

        run("view", "loss", "--run", folder, "--csv", work / "records.csv")
        table = list(csv.DictReader(io.StringIO((work / "records.csv").read_text())))
        checks.that(len(table) == len(records), f"{len(table)} rows of {len(records)} records")
        for row, record in zip(table, records):
            for key, value in record.items():
                if isinstance(value, (int, float)):
                    checks.that(float(row[key]) == float(value), f"{key}: {row[key]} is not {value}")
    checks.report("logs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
