"""Writes the cases' folders (data, job.yaml, template). Run once: python make.py"""
import gzip, json, os, random
import numpy as np, pandas as pd
R = random.Random(19)
os.chdir(os.path.dirname(os.path.abspath(__file__)))
TEMPLATE = '''{%- if tools %}<|im_start|>system
TOOLS: {{ tools | tojson }}<|im_end|>
{% endif %}{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == "assistant" %}{{ m.content or "" }}{% if m.tool_calls %}{% for c in m.tool_calls %}<tool_call>{{ {"name": c.function.name, "arguments": c.function.arguments} | tojson }}</tool_call>{% endfor %}{% endif %}<|im_end|>{% else %}{{ m.content or "" }}<|im_end|>{% endif %}
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}'''
def job(case, task="sft", data="data.jsonl", extra="", steps=3, batch=4, text=None):
    os.makedirs(case, exist_ok=True)
    open(f"{case}/template.jinja", "w").write(TEMPLATE)
    open(f"{case}/job.yaml", "w").write(text or f"""name: {case}
model:
  from_config: {{model_type: qwen2, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 2}}
tokenizer: bytes
data: {{train: {data}, max_length: 2048, template: template.jinja}}
task: {task}
steps: {steps}
batch: {{size: {batch}}}
optimiser: {{lr: 1.0e-3}}
schedule: {{name: constant, warmup: 0}}
logging: {{samples: true}}
{extra}""")
def lines(case, rows, name="data.jsonl", enc="utf-8"):
    with open(f"{case}/{name}", "w", encoding=enc, newline="") as f:
        for r in rows: f.write((r if isinstance(r, str) else json.dumps(r, ensure_ascii=False)) + "\n")
W = "amber birch cedar delta ember fjord grove heath inlet jetty knoll lagoon mesa north ocean prairie quarry ridge shoal tundra".split()
w = lambda n=1: " ".join(R.choice(W) for _ in range(n))
TOOL = lambda n: {"type": "function", "function": {"name": n, "description": "looks up " + n, "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}}}

job("t01_openai_tools"); rows = []
for i in range(12):
    p = w(); rows.append({"messages": [{"role": "system", "content": f"System-{i}"}, {"role": "user", "content": f"Tide at {p}?"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": f"c{i}", "type": "function", "function": {"name": "tide", "arguments": json.dumps({"place": p})}}]},
        {"role": "tool", "tool_call_id": f"c{i}", "name": "tide", "content": json.dumps({"metres": i / 4})},
        {"role": "assistant", "content": f"It stands at {i / 4} m."}], "tools": [TOOL("tide"), TOOL("wind")], "parallel_tool_calls": False})
lines("t01_openai_tools", rows)

job("t02_sharegpt"); rows = []
for i in range(12):
    p = w(); rows.append({"id": f"sg-{i}", "system": f"Sys{i}: be exact.", "conversations": [{"from": "human", "value": f"Wind at {p}?"}, {"from": "function_call", "value": json.dumps({"name": "wind", "arguments": {"place": p}})},
        {"from": "observation", "value": json.dumps({"knots": i})}, {"from": "gpt", "value": f"{i} knots."}], "tools": json.dumps([TOOL("wind")["function"]])})
lines("t02_sharegpt", rows)

job("t03_alpaca_history")
lines("t03_alpaca_history", [{"instruction": f"Name a wood ({i}).", "input": "" if i % 2 else f"Note {i}: near water", "output": f"OUT-{w()}", "system": f"SYS{i}", "history": [[f"HQ1-{i}", f"HA1-{i}"], [f"HQ2-{i}", f"HA2-{i}"]]} for i in range(12)])

job("t04_weights")
lines("t04_weights", [{"messages": [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": f"UNLEARNED-{w()}", "weight": 0}, {"role": "user", "content": "again"}, {"role": "assistant", "content": f"LEARNED-{w()}", "weight": 1}]} for i in range(12)])

job("t05_images")
lines("t05_images", [{"messages": [{"role": "user", "content": [{"type": "text", "text": f"What is in picture {i}?"}, {"type": "image_url", "image_url": {"url": f"img/{i}.png"}}]}, {"role": "assistant", "content": w(3)}]} if i % 3 == 0
    else {"messages": [{"role": "user", "content": f"plain {i}"}, {"role": "assistant", "content": w(2)}]} for i in range(12)])

job("t06_pairs", task="dpo"); P = lambda i: {"prompt": [{"role": "user", "content": f"Pick {i}"}], "chosen": [{"role": "assistant", "content": "good " + w(2)}], "rejected": [{"role": "assistant", "content": "bad " + w(2)}]}
rows = [P(i) for i in range(16)]; del rows[4]["rejected"]; rows[9]["chosen"] = [{"role": "assistant", "content": ""}]; rows[13]["rejected"] = rows[13]["chosen"]
lines("t06_pairs", rows)

job("t07_cut_line"); rows = [json.dumps({"prompt": f"p{i} ", "completion": w(4)}) for i in range(14)]; rows[6] = rows[6][:-9]
lines("t07_cut_line", rows)

job("t08_double_keys"); rows = [json.dumps({"prompt": f"p{i} ", "completion": w(4)}) for i in range(12)]; rows[5] = '{"prompt": "p5 ", "completion": "FIRST answer", "completion": "SECOND answer"}'
lines("t08_double_keys", rows)

FEAT = """schema: joymigrate.features/1
label: label
dim: 8
{more}features:
  user: {{type: id, rows: 50}}
  item: {{type: id, rows: 40}}
  price: {{type: number, scale: log1p}}
"""
def rec(case, df, more="", name="clicks.parquet", evaluate=None):
    os.makedirs(case, exist_ok=True); open(f"{case}/features.yaml", "w").write(FEAT.format(more=more))
    df.to_csv(f"{case}/{name}", index=False) if name.endswith("csv") else df.to_parquet(f"{case}/{name}", index=False)
    if evaluate is not None: evaluate.to_parquet(f"{case}/eval.parquet", index=False)
    job(case, text=f"""name: {case}
model: {{from_config: {{model_type: deepfm, hidden: [16, 8]}}}}
task: ctr
data: {{train: {name}, {'eval: eval.parquet, ' if evaluate is not None else ''}schema: features.yaml}}
steps: 4
batch: {{size: 32}}
optimiser: {{lr: 1.0e-2}}
logging: {{samples: true}}
"""); os.remove(f"{case}/template.jinja")
N = np.random.default_rng(8)
def clicks(n):
    u, i = N.integers(0, 50, n), N.integers(0, 40, n); return pd.DataFrame({"user": u.astype("int64"), "item": i.astype("int64"), "price": N.gamma(2, 10, n).astype("float64"), "label": ((u + i) % 3 == 0).astype("float64")})
d = clicks(320); d["label"] = (0.1 + 0.75 * d.label).round(3); e = clicks(80); e["label"] = (0.075 + 0.25 * (1 + e.label)).round(3)      # 0.325 and 0.575
rec("t09_soft_labels", d, evaluate=e)

job("t10_empty_turns"); A = lambda u, a: {"messages": [{"role": "user", "content": u}, {"role": "assistant", "content": a}]}
rows = [A(f"q{i}", w(3)) for i in range(12)]; rows[2] = A("q2", ""); rows[5] = A("", w(2)); rows[7] = {"messages": [{"role": "user", "content": "alone"}]}; rows[8] = A("q8", None); rows[11] = {"messages": []}
lines("t10_empty_turns", rows)

job("t11_unicode"); rows = [json.dumps({"prompt": f"p{i}: ", "completion": c}, ensure_ascii=i % 2 == 0) for i, c in enumerate(
    ["caf\u00e9", "cafe\u0301", "\U0001F600 grin", "\u0645\u0631\u062d\u0628\u0627", "line\u2028separator", "next\u0085line", "nul\u0000l", "\u4f60\u597d\u3002", "zero\u200bwidth", "tab\tand\\back"])]
rows.append('{"prompt": "p10: ", "completion": "lone \\ud83d half"}')
lines("t11_unicode", rows)

job("t12_bom_crlf")
with open("t12_bom_crlf/data.jsonl", "wb") as f: f.write(b"\xef\xbb\xbf" + b"".join(json.dumps({"instruction": f"i{i}", "input": "", "output": w(3)}).encode() + b"\r\n" for i in range(12)) + b"\r\n\r\n")

job("t13_gzip", data="data.jsonl.gz")
with gzip.open("t13_gzip/data.jsonl.gz", "wt") as f:
    for i in range(12): f.write(json.dumps({"prompt": f"p{i} ", "completion": w(4)}) + "\n")

d = clicks(200); d.loc[[3, 40, 77], "price"] = np.nan; d["user"] = d.user.astype("Int64"); d.loc[[10, 11], "user"] = pd.NA
rec("t14_csv_missing", d, name="clicks.csv")

d = clicks(200); d["user"] = d.user.astype("Int64"); d.loc[[3, 40, 77], "price"] = np.nan; d.loc[[5], "price"] = np.inf; d.loc[[10, 11], "user"] = pd.NA; d.loc[[20, 21, 22, 23], "item"] = 40; d.loc[[30], "item"] = -1; d.loc[[60, 61], "label"] = np.nan
rec("t15_parquet_bad_rows", d, more="on_error: skip\n")
s = open("t15_parquet_bad_rows/job.yaml").read().replace("steps: 4\n", "epochs: 1\n").replace("size: 32", "size: 11"); open("t15_parquet_bad_rows/job.yaml", "w").write(s)

job("t16_grown_file", steps=4, batch=4)
rows = [{"prompt": f"p{i:02d} ", "completion": f"ANSWER-{i:02d}"} for i in range(40)]
lines("t16_grown_file", rows[:32]); lines("t16_grown_file", rows[32:], "more.jsonl")

job("t17_yaml_double"); lines("t17_yaml_double", [{"prompt": f"p{i} ", "completion": w(4)} for i in range(12)])
s = open("t17_yaml_double/job.yaml").read().replace("steps: 3\n", "steps: 3\nsteps: 5\n"); open("t17_yaml_double/job.yaml", "w").write(s)
