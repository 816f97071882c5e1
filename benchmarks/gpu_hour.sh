#!/usr/bin/env bash
# What one GPU computes and how fast, in an hour at most (by default some 15 minutes on an H100).
#
#   OUT=results benchmarks/gpu_hour.sh             every part
#   OUT=results benchmarks/gpu_hour.sh check gpt   only these parts
#
# DEVICE (cuda), SIZE (large: 1.3B parameters; small: for a test on a CPU), SECONDS_A_PART (240). Each part runs
# under `timeout`, leaves its log and its own JSON in $OUT, and does not stop the others. A part whose
# command or card is not there is skipped, and the page says why. $OUT/hour.json and $OUT/hour.md
# have a row for each part. Exit code: 0 where no part that was started failed.
set -u
cd "$(dirname "$0")/.." || exit 2
: "${OUT:?OUT=folder is where the results go}"
: "${DEVICE:=cuda}" "${SIZE:=large}" "${SECONDS_A_PART:=240}" "${PYTHON:=python3}"
mkdir -p "$OUT" && OUT=$(cd "$OUT" && pwd) || exit 2
export TORCH_DEVICE_BACKEND_AUTOLOAD=0
ROWS=$OUT/parts.tsv
: > "$ROWS"
WANTED=" $* "
joy() { "$PYTHON" -m joymigrate "$@"; }
export -f joy
export PYTHON

missing() { # the reason why nothing can run on DEVICE, or nothing
  [ "$DEVICE" = cpu ] || "$PYTHON" - "$DEVICE" <<'PY'
import sys
try:
    import torch
except ImportError:
    print("torch is not installed")
else:
    kind = getattr(torch, sys.argv[1].partition(":")[0], None)
    if kind is None or not kind.is_available():
        print(f"no {sys.argv[1]} device here: torch.{sys.argv[1]}.is_available() is false")
PY
}

NO_CARD=$(missing)

part() { # part NAME FILE|- COMMAND…: one part; FILE is what its command needs
  local name=$1 needs=$2 code=0 start
  shift 2
  [[ $WANTED =~ ^\ *$ || $WANTED == *" $name "* ]] || return 0
  local why=$NO_CARD
  [ "$needs" = - ] || [ -e "$needs" ] || why="$needs is not there"
  if [ -n "$why" ]; then
    printf '%s\tskipped\t0\t%s\t%s\n' "$name" "$why" "$*" >> "$ROWS"
    return 0
  fi
  start=$SECONDS
  timeout --kill-after=10 "$SECONDS_A_PART" bash -c 'set -e; "$@"' part "$@" > "$OUT/$name.log" 2>&1 || code=$?
  local told=passed
  [ "$code" = 0 ] || told="failed ($code)"
  [ "$code" != 124 ] && [ "$code" != 137 ] || told="stopped after $SECONDS_A_PART s"
  printf '%s\t%s\t%s\t%s\t%s\n' "$name" "$told" $((SECONDS - start)) \
    "$(grep -v '^ *$' "$OUT/$name.log" | tail -1 | tr '\t' ' ' | cut -c1-200)" "$*" >> "$ROWS"
}

job() { # job KERNELS: a job file for a GPT from scratch
  local shape='hidden_size: 2048, intermediate_size: 5632, num_hidden_layers: 24, num_attention_heads: 16, num_key_value_heads: 16'
  local batch='size: 16, micro: 4' length=2048 steps=20
  if [ "$SIZE" = small ]; then
    shape='hidden_size: 64, intermediate_size: 128, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 4'
    batch='size: 2, micro: 2' length=64 steps=3
  fi
  "$PYTHON" - "$OUT/text.jsonl" <<'PY'
import json, random, sys
chance = random.Random(7)
words = [f"word{number}" for number in range(5000)]
with open(sys.argv[1], "w") as file:
    for _ in range(2000):
        file.write(json.dumps({"text": " ".join(chance.choices(words, k=400))}) + "\n")
PY
  cat > "$OUT/gpt_$1.yaml" <<YAML
model: {from_config: {model_type: llama, vocab_size: 32000, max_position_embeddings: $length, $shape}}
tokenizer: bytes
data: {train: $OUT/text.jsonl, max_length: $length}
task: pretrain
method: full
batch: {$batch}
steps: $steps
dtype: bfloat16
device: $DEVICE
kernels: $1
YAML
}
[ -n "$NO_CARD" ] || { job auto; job off; }

for dtype in float32 float16 bfloat16; do
  part "check-$dtype" - joy kernels check --device "$DEVICE" --dtype $dtype --format json -o "$OUT/check-$dtype.json"
done
part bench - joy kernels bench --device "$DEVICE" --tune --rounds 3 --format json -o "$OUT/bench.json"
part grid benchmarks/kernels_grid.py "$PYTHON" benchmarks/kernels_grid.py --device "$DEVICE"
part gpt - joy train "$OUT/gpt_auto.yaml" --run "$OUT/run_auto" --fresh
part gpt-plain - joy train "$OUT/gpt_off.yaml" --run "$OUT/run_off" --fresh
part engine benchmarks/engine_speed.py "$PYTHON" benchmarks/engine_speed.py --only load --json "$OUT/engine.json"
part ranking benchmarks/ranking_load.py "$PYTHON" -m benchmarks.ranking_load --only tail --seconds 10
part recorder benchmarks/recorder_overhead.py "$PYTHON" benchmarks/recorder_overhead.py 5
STEPS=100
[ "$SIZE" = large ] || STEPS=5
PROGRAM=("$PYTHON" examples/gpt/train.py --device "$DEVICE" --steps "$STEPS" --eval-sums 4 --out "$OUT/gpt")
part record examples/gpt/train.py joy profile record -o "$OUT/step.jsonl" -- "${PROGRAM[@]}"
part coverage "$OUT/step.jsonl" joy profile coverage "$OUT/step.jsonl" --format json -o "$OUT/coverage.json"
part baseline examples/gpt/train.py joy verify record -o "$OUT/gpt.jmb" -- "${PROGRAM[@]}"

"$PYTHON" - "$OUT" "$DEVICE" <<'PY'
import json, sys
from pathlib import Path

folder, device = Path(sys.argv[1]), sys.argv[2]
names = ("part", "result", "seconds", "last_line", "command")
lines = (folder / "parts.tsv").read_text().splitlines()
rows = [dict(zip(names, line.split("\t"), strict=True)) for line in lines]
about = {"device": device, "card": "none", "torch": "not installed"}
try:
    import torch

    about["torch"] = torch.__version__
    if device.startswith("cuda") and torch.cuda.is_available():
        card = torch.cuda.get_device_properties(0)
        about |= {"card": card.name, "memory_gib": round(card.total_memory / 2**30, 1)}
except ImportError:
    pass
for name in ("auto", "off"):  # the last step of each training: MFU, tokens per second
    metrics = folder / f"run_{name}" / "metrics.jsonl"
    if metrics.is_file():
        about[f"gpt_kernels_{name}"] = json.loads(metrics.read_text().splitlines()[-1])
(folder / "hour.json").write_text(json.dumps({**about, "parts": rows}, indent=1) + "\n")
page = ["# One hour on a GPU", "", "| | |", "| --- | --- |"]
page += [f"| {key} | {value} |" for key, value in about.items()]
page += ["", "| part | result | s | last line of its log, or why not |", "| --- | --- | --- | --- |"]
page += [f"| {r['part']} | {r['result']} | {r['seconds']} | {r['last_line'].replace('|', '/')} |" for r in rows]
(folder / "hour.md").write_text("\n".join(page) + "\n")
print("\n".join(page))
sys.exit(any(row["result"] not in ("passed", "skipped") for row in rows))
PY
