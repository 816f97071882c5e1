"""A training file of LLaMA-Factory as a job: every key is used, passed over or refused by name.

`llamafactory_keys.yaml` says what becomes of each key, with the sources. Relative paths count from
the folder that the command runs in, as they do there.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.train.chats import SPEAKERS
from joymigrate.schema import DocumentSource, load_file, read_yaml

FILE = Path(__file__).with_name("llamafactory_keys.yaml")
MARKS = {"model_name_or_path", "finetuning_type", "stage"}
# Columns of dataset_info.json, and the keys of records that `train` reads for them.
COLUMNS = {
    **{"prompt": ("instruction", "text"), "query": ("input",), "response": ("output",)},
    **{"messages": ("messages", "conversations"), "history": ("history",), "system": ("system",)},
    **{"tools": ("tools",), "chosen": ("chosen",), "rejected": ("rejected",)},
}
TAGS = {
    **{"role_tag": ("role", "from"), "content_tag": ("content", "value")},
    **{
        f"{tag}_tag": tuple(name for name, role in SPEAKERS.items() if role == meant)
        for tag, meant in {"user": "user", "assistant": "assistant", "observation": "tool",
                           "function": "assistant", "system": "system"}.items()
    },
}  # fmt: skip
# Parts of a DeepSpeed file that say where values lie, not what they are.
SHARDING = ("zero_optimization", "zero_allow_untested_optimizer")
Made = dict[str, Any]  # keys of a job, with dots, and their values


@functools.cache
def table() -> Mapping[str, Any]:
    """What becomes of each key."""
    found: Mapping[str, Any] = read_yaml(FILE)
    return found


def by_key(part: str) -> dict[str, str]:
    """The reason of every key that is refused or not used."""
    return {key: reason for reason, keys in table()[part].items() for key in keys}


def is_llamafactory(raw: Any) -> bool:
    """Whether a document has keys of LLaMA-Factory where a job has its own."""
    return isinstance(raw, Mapping) and bool(MARKS & raw.keys()) and "model" not in raw


def read_job(
    raw: Mapping[str, Any], source: DocumentSource, here: Path
) -> tuple[dict[str, Any], list[str]]:
    """The job's document, and a line for every key of the file and every default that counts.

    Raises `JoyError` for unknown keys, for keys whose value would compute something else, and for
    values of another kind.
    """
    check(raw, source)
    given = GivenKeys(raw, source, here)
    made: Made = {}
    for key, row in table()["read"].items():
        if given.counts(row):
            made |= given.convert(key, row)
    return nest(made), [*tell(given, made)]


def check(raw: Mapping[str, Any], source: DocumentSource) -> None:
    """Refuse what is unknown or would compute something else, all of it at once."""
    refused, unused, wrong = by_key("refused"), by_key("not used"), []
    plain = {key: value for keys in table()["refused"].values() for key, value in keys.items()}
    for key, value in raw.items():
        if key in refused and value is not None and value != plain[key]:
            wrong.append((key, f"{key} is {value!r}: {refused[key]}"))
        elif key not in refused and key not in unused and key not in table()["read"]:
            known = [*table()["read"], *refused, *unused]
            wrong.append((key, f"unknown key '{key}'.{did_you_mean(str(key), known)}"))
    if wrong:
        raise JoyError(
            "; ".join(text for _, text in wrong),
            where=source.at([str(wrong[0][0])]),
            help="change or remove these keys; docs/how-to/train-tasks.md lists all",
        )


def tell(given: GivenKeys, made: Made) -> Iterator[str]:
    """What became of each key of the file, and by default of the others that a job has."""
    refused, unused, rows = by_key("refused"), by_key("not used"), table()["read"]
    for key, value in given.raw.items():
        if key in rows:
            yield f"{key} {value}: {became(given, key, rows[key], made)}"
        else:
            reason = unused.get(key) or f"as without it ({refused[key]})"
            yield f"{key} {value}: not used, {reason}"
    said = {rows[key]["to"] for key in given.raw if key in rows}
    for key, row in rows.items():
        if row["to"] in made.keys() - said:
            said.add(row["to"])
            yield f"{key} is not in the file: {became(given, key, row, made)}"


def became(given: GivenKeys, key: str, row: Mapping[str, Any], made: Made) -> str:
    """The job's key with its value, or why there is none."""
    if not given.counts(row):
        (other, wanted), = row["only"].items()  # fmt: skip
        return f"not used, it counts with {other} {wanted}"
    if row["to"] not in made:
        return f"not used, {row.get('note', 'another key decides')}"
    note = f" ({row['note']})" if "note" in row else ""
    return f"{row['to']} {made[row['to']]}{note}"


def nest(made: Made) -> dict[str, Any]:
    """Keys with dots as mappings in mappings."""
    document: dict[str, Any] = {}
    for name, value in made.items():
        at = document
        *above, last = name.split(".")
        for one in above:
            at = at.setdefault(one, {})
        at[last] = value
    return document


class GivenKeys:
    """The keys of a file with their defaults, and the functions that `by` names."""

    def __init__(self, raw: Mapping[str, Any], source: DocumentSource, here: Path) -> None:
        self.raw, self.source, self.here = raw, source, here

    def __getitem__(self, key: str) -> Any:
        value = self.raw.get(key)
        return table()["read"][key].get("default") if value is None else value

    def counts(self, row: Mapping[str, Any]) -> bool:
        """Whether a row counts beside the other keys."""
        return all(self[key] == value for key, value in row.get("only", {}).items())

    def convert(self, key: str, row: Mapping[str, Any]) -> Made:
        """The keys of the job that one key gives."""
        if "by" in row:
            made: Made = getattr(self, row["by"])(key)
            return made
        value = self[key]
        if "values" in row:
            if isinstance(value, list) and len(value) == 1:
                (value,) = value
            value = self.chosen(key, value, row["values"])
        return {} if value is None else {row["to"]: value}

    def wrong(self, key: str, help: str) -> JoyError:
        """A value that `train` does not take."""
        return JoyError(
            f"{key} {self[key]!r} is nothing that train does",
            where=self.source.at([key]),
            help=help,
        )

    def chosen(self, key: str, value: Any, words: Mapping[Any, Any]) -> Any:
        """What one of some words stands for."""
        if isinstance(value, list | dict) or value not in words:
            raise self.wrong(key, f"one of {', '.join(map(str, words))}")
        return words[value]

    def number(self, key: str, value: Any = None) -> float:
        """A number, also one written as 1e-4; of the key itself where no value is given."""
        try:
            return float(self[key] if value is None else value)
        except (TypeError, ValueError):
            raise self.wrong(key, "a number") from None

    def whole(self, key: str) -> int:
        """A whole number from 1."""
        value = self.number(key)
        if value < 1 or value != int(value):
            raise self.wrong(key, "a whole number from 1")
        return int(value)

    def names(self, key: str) -> list[str]:
        """A list, or a text with commas."""
        value = self[key]
        parts = value if isinstance(value, list) else str(value or "").split(",")
        return [str(part).strip() for part in parts if part != ""]

    # -- what one key cannot say alone ---------------------------------------------------------

    def model(self, key: str) -> Made:
        """A local folder; nothing is fetched from a hub."""
        path = self.here / str(self[key])
        if not path.is_dir():
            raise self.wrong(key, "the path of a local model folder, from here")
        return {"model.path": str(path)}

    def folder(self, key: str) -> Made:
        """Where the run writes."""
        return {} if self[key] is None else {"run": str(self.here / str(self[key]))}

    def data(self, key: str) -> Made:
        """The files that dataset_info.json names."""
        if key == "dataset_dir" or self[key] is None:
            return {}
        folder = self.here / str(self["dataset_dir"])
        info, source = load_file(folder / "dataset_info.json", "description of the data")
        files = []
        for name in self.names(key):
            if not isinstance(info, dict) or not isinstance(info.get(name), dict):
                raise JoyError(f"no dataset '{name}'", where=source.name, help="describe it there")
            self.check_columns(name, info[name], source)
            files.append(str(folder / str(info[name]["file_name"])))
        return {"data.train" if key == "dataset" else "data.eval": files}

    def check_columns(self, name: str, row: Mapping[str, Any], source: DocumentSource) -> None:
        """Refuse a description of other keys than those that records are read by."""
        known = ("file_name", "formatting", "ranking", "columns", "tags")
        wrong = [key for key in row if key not in known or (key == "file_name" and not row[key])]
        for part, allowed in (("columns", COLUMNS), ("tags", TAGS)):
            told = row.get(part) or {}
            if not isinstance(told, dict):
                told, wrong = {}, [*wrong, part]
            wrong += [f"{part}.{k}" for k, v in told.items() if v not in allowed.get(k, ())]
        pairs = self["stage"] in ("dpo", "rm")
        wrong += ["ranking"] if bool(row.get("ranking")) != pairs else []
        if wrong or "file_name" not in row:
            raise JoyError(
                f"dataset '{name}' cannot be read as described: {', '.join(wrong) or 'file_name'}",
                where=source.at([name]),
                help="a local file_name, records with the usual keys (joymigrate train tasks)",
            )

    def mixture(self, key: str) -> Made:
        """Shares of the files, drawn by chance."""
        words = {"concat": None, "interleave_under": "first", "interleave_over": "all"}
        until = self.chosen("mix_strategy", self["mix_strategy"], words)
        count = len(self.names("dataset"))
        if until is None or count == 1:
            return {}
        shares = [self.number("interleave_probs", one) for one in self.names("interleave_probs")]
        return {"data.weights": shares or [1.0] * count, "data.until": until}

    def holdout(self, key: str) -> Made:
        """Records for eval: a number of them, or below 1 a share."""
        size = self.number(key)
        if size < 0:
            raise self.wrong(key, "a share below 1, or a number of records")
        return {"data.holdout": int(size) if size > 1 else size} if size else {}

    def learned(self, key: str) -> Made:
        """Every token, the last answer or all answers."""
        whole, last = self["train_on_prompt"], self["mask_history"]
        for name, value in (("train_on_prompt", whole), ("mask_history", last)):
            if not isinstance(value, bool):
                raise self.wrong(name, "true or false")
        if whole and last:
            raise self.wrong("mask_history", "without train_on_prompt")
        return {"task.learn": "all" if whole else "last" if last else "answers"}

    def trackers(self, key: str) -> Made:
        """Services by name; TensorBoard's files lie in the run folder."""
        names = [name for name in self.names(key) if name not in ("none", "None")]
        others = [name for name in names if name != "tensorboard"]
        made: Made = {"logging.tensorboard": True} if others != names else {}
        return made | ({"logging.trackers": others} if others else {})

    def packing(self, key: str) -> Made:
        """On by default for plain texts alone; pairs are never packed."""
        asked = self["packing"]
        on = self["stage"] == "pt" if asked is None else asked
        texts = self["stage"] in ("pt", "sft")
        return {"data.packing": texts and bool(on or self["neat_packing"])}

    def alpha(self, key: str) -> Made:
        """Twice the rank by default."""
        return {"method.alpha": self[key] or 2 * self.whole("lora_rank")}

    def dropout(self, key: str) -> Made:
        """Of the adapter, but for pairs (disable_dropout of train/dpo/trainer.py at 00052690)."""
        return {"method.dropout": 0.0 if self["stage"] == "dpo" else self[key]}

    def targets(self, key: str) -> Made:
        """Names of layers; `all` are those that are no heads."""
        return {"method.targets": [one for one in self.names(key) if one != "all"]}

    def batch(self, key: str) -> Made:
        """What one process takes for a step."""
        micro = self.whole("per_device_train_batch_size")
        size = micro * self.whole("gradient_accumulation_steps")
        return {"batch.micro": micro, "batch.size": size}

    def length(self, key: str) -> Made:
        """Steps where they are given, else epochs."""
        steps = self.number("max_steps")
        return {"steps": self.whole("max_steps")} if steps > 0 else {
            "epochs": self.number("num_train_epochs")}  # fmt: skip

    def dtype(self, key: str) -> Made:
        """Of the computation; the weights stay float32 unless pure_bf16 says otherwise."""
        half = "bfloat16" if self["bf16"] or self["pure_bf16"] else "float16"
        plain = not (self["bf16"] or self["fp16"] or self["pure_bf16"])
        return {"dtype": "float32" if plain else half, "master": not self["pure_bf16"]}

    def sharding(self, key: str) -> Made:
        """A DeepSpeed file that says how to shard alone: all else is `auto`, as here."""
        value = self[key]
        if value is None:
            return {}
        told = value if isinstance(value, dict) else load_file(self.here / str(value))[0]
        for part, says in told.items() if isinstance(told, dict) else [(key, told)]:
            plain = says.get("enabled") if isinstance(says, dict) else says
            if part not in SHARDING and plain != "auto":
                raise self.wrong(f"{key}", f"its '{part}' computes something else; take it out")
        return {}

    def betas(self, key: str) -> Made:
        """Of AdamW."""
        if self["optim"] == "sgd":
            return {}
        betas = [self.number("adam_beta1"), self.number("adam_beta2")]
        return {"optimiser.betas": betas, "optimiser.eps": self.number("adam_epsilon")}

    def warmup(self, key: str) -> Made:
        """Steps, or below 1 a share of the run. The schedule `constant` has none there."""
        if self["lr_scheduler_type"] == "constant":
            return {"schedule.warmup": 0}
        steps = self.number("warmup_steps")
        return {"schedule.warmup": steps or self.number("warmup_ratio")}

    def saving(self, key: str) -> Made:
        """Checkpoints; all of them stay where no limit is given."""
        words = {"steps": True, "no": False, False: False}  # YAML reads no as false
        saves = self.chosen("save_strategy", self["save_strategy"], words)
        every = self.whole("save_steps") if saves else 0
        return {"checkpoint.every": every, "checkpoint.keep": self["save_total_limit"] or 10**6}

    def looks(self, key: str) -> Made:
        """Looks at held-out data."""
        words = {"no": None, False: None, "steps": "steps", "epoch": "epoch"}
        wish = self.chosen("eval_strategy", self["eval_strategy"], words)
        if wish is None:
            return {}
        steps = "logging_steps" if self["eval_steps"] is None else "eval_steps"
        made: Made = {
            "eval.every": self.whole(steps) if wish == "steps" else 0,
            "eval.batch": self.whole("per_device_eval_batch_size"),
        }
        if self["load_best_model_at_end"] or self["early_stopping_steps"]:
            metric = str(self["metric_for_best_model"] or "loss").removeprefix("eval_")
            goals = {None: "auto", True: "highest", False: "lowest"}
            goal = self.chosen("greater_is_better", self["greater_is_better"], goals)
            made |= {"eval.metric": metric, "eval.goal": goal}
            made |= {"eval.patience": self["early_stopping_steps"]}
        return made


def as_markdown() -> str:
    """All keys as tables of a page, from the same table."""
    lines = ["| key | becomes | |", "|---|---|---|"]
    for key, row in table()["read"].items():
        pairs = [f"{told} is {ours}" for told, ours in row.get("values", {}).items()]
        more = ", ".join([*pairs, *filter(None, [row.get("note")])])
        lines.append(f"| `{key}` | `{row['to']}` | {more} |")
    for part in ("refused", "not used"):
        lines += ["", f"| {part} | why |", "|---|---|"]
        for reason, keys in table()[part].items():
            lines.append(f"| {', '.join(f'`{key}`' for key in keys)} | {reason} |")
    return "\n".join(lines) + "\n"
