#!/usr/bin/env python3
"""MLflow's file store, written by a run, read and gone on with by the mlflow package.

A short run is ended half-way and goes on, in a folder whose name an address must escape."""
import json
import os
import pathlib
import sys
import tempfile

from command import TINY_EXPERIMENT, Checks, run, skip

# Its newer releases read their own files only when they are told to.
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
try:
    from mlflow import MlflowClient
    from mlflow.entities import RunStatus
except ImportError:
    skip("the mlflow package is not installed (mlflow-skinny is enough)")

EXPERIMENT = TINY_EXPERIMENT + """      disable_mlflow: false
      mlflow_experiment_name: "one: #1 é"
      mlflow_run_name: "first #1"
      mlflow_upload_logs: true
      mlflow_upload_traces: true
      mlflow_upload_performance_metrics: true
      profile: true
      use_pytorch_profiler: true
      profile_step_start: 6
      profile_step_end: 7
"""


def history(client, run_id, name):
    return [(each.step, each.value) for each in client.get_metric_history(run_id, name)]


def check_run(checks, client, folder, name, num_steps):
    found = client.search_runs([client.get_experiment_by_name(name).experiment_id])
    checks.that(len(found) == 1, f"{len(found)} runs of {name}")
    info, data = found[0].info, found[0].data
    checks.that(info.status == RunStatus.to_string(RunStatus.FINISHED), f"it is {info.status}")
    checks.that(info.run_name == "first #1" and info.user_id == "me", f"{info}")
    checks.that(0 < info.start_time < info.end_time, f"{info}")

    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [each for each in records if "lm_loss" in each]
    checks.that([each["iteration"] for each in steps] == list(range(1, num_steps + 1)), f"{steps}")
    for series, key in (("lm loss", "lm_loss"), ("learning-rate", "learning_rate"), ("grad-norm", "grad_norm"),
                        ("load_balancing_loss", "load_balancing_loss"),
                        ("perf/throughput_tflops_per_gpu", "tflops_per_device")):
        of_mlflow = history(client, info.run_id, series)
        checks.that([step for step, _ in of_mlflow] == [each["iteration"] for each in steps], f"{series}: {of_mlflow}")
        for (_, value), each in zip(of_mlflow, steps):
            # The text of metrics.jsonl is rounded.
            checks.that(abs(value - each[key]) <= 1e-6 * abs(each[key]), f"{series}: {value} is not {each[key]}")
    evaluations = {each["eval_split"]: each for each in records if "eval_loss" in each}
    for split, each in evaluations.items():
        step, value = history(client, info.run_id, f"lm loss {split}")[-1]
        checks.that(step == each["iteration"] and abs(value - each["eval_loss"]) <= 1e-6 * value, f"{split} {value}")

    settings = json.loads((folder / "experiment.json").read_text())
    for key, text in (("hidden_size", "32"), ("lr", "0.005"), ("tokenizer_type", "NullTokenizer"), ("save", "null")):
        checks.that(data.params.get(key) == text, f"{key}: {data.params.get(key)}")
    checks.that(set(data.params) == set(settings["settings"]), f"{set(data.params) ^ set(settings['settings'])}")

    files = [each.path for each in client.list_artifacts(info.run_id, "logs")]
    checks.that(sorted(files) == [f"logs/{file}" for file in ("experiment.json", "experiment.yaml", "log.txt",
                                                             "metrics.jsonl")], f"{files}")
    traces = [each.path for each in client.list_artifacts(info.run_id, "traces")]
    checks.that(len(traces) == 1 and traces[0].endswith(".pt.trace.json.gz"), f"{traces}")
    copy = pathlib.Path(client.download_artifacts(info.run_id, "logs/metrics.jsonl"))
    checks.that(copy.read_bytes() == (folder / "metrics.jsonl").read_bytes(), "the copied metrics.jsonl differs")
    return info.run_id


def main():
    checks = Checks()
    with tempfile.TemporaryDirectory() as place:
        work = pathlib.Path(place) / "a b#c%41é"
        work.mkdir()
        experiment = work / "experiment.yaml"
        experiment.write_text(EXPERIMENT.format(folder=f'"{work}"'))
        words = ("direct", "--", "train", "pretrain", "--config", experiment, "--device", "cpu")
        os.environ.pop("MLFLOW_TRACKING_URI", None)
        run(*words, "--exit_interval", "5")
        folder = work / "t/me/run"
        client = MlflowClient(tracking_uri=(work / "mlruns").as_uri())
        checks.that(sorted(each.name for each in client.search_experiments()) == ["Default", "one: #1 é"],
                    f"{client.search_experiments()}")
        first = client.search_runs([client.get_experiment_by_name("one: #1 é").experiment_id])[0].info.run_id
        run(*words)
        checks.that(check_run(checks, client, folder, "one: #1 é", 10) == first, "the run did not go on in its own place")

        # MLflow writes into the run, and into an experiment of its own that a run of ours then joins.
        client.log_metric(first, "by hand", 1.5, step=3)
        client.set_tag(first, "note", "good")
        theirs = client.create_experiment("theirs")
        checks.that(history(client, first, "by hand") == [(3, 1.5)], "what mlflow wrote into our run")
        os.environ["MLFLOW_TRACKING_URI"] = (work / "mlruns").as_uri()
        run(*words, "--auto_continue_train", "false", "--mlflow_experiment_name", "theirs", "--train_iters", "8")
        runs = client.search_runs([theirs])
        checks.that(len(runs) == 1, f"{len(runs)} runs in the experiment that mlflow made")
        check_run(checks, client, folder, "theirs", 8)

        # A search by a figure, as its page does.
        best = client.search_runs([theirs], filter_string="metrics.`lm loss` > 0 and params.hidden_size = '32'")
        checks.that([each.info.run_id for each in best] == [runs[0].info.run_id], f"{best}")
    checks.report("mlflow")
    return 0


if __name__ == "__main__":
    sys.exit(main())
