"""The words of the live page in English and Chinese; those of a journey are the report's."""

from __future__ import annotations

from joymigrate.language import fill
from joymigrate.report import journey_words
from joymigrate.report.labels import LANGUAGES, Labels

WORDS: dict[str, tuple[str, str]] = {
    "title": ("{project}: migration, live", "{project}：迁移实况"),
    "nothing": (
        "Nothing here yet. The page grows as joymigrate works in this project.",
        "暂无内容。joymigrate 在此项目中运行时，本页会随之更新。",
    ),
    "no_journey": (
        "No journey yet: joymigrate migrate PROJECT --entry \"python train.py\" begins one.",
        "尚未开始迁移：joymigrate migrate PROJECT --entry \"python train.py\" 即可开始。",
    ),
    "report": ("The whole report", "完整报告"),
    "running": ("running", "进行中"),
    "to_come": ("to come", "待执行"),
    "for": ("for", "已运行"),
    "training": ("Training", "训练"),
    "both_sides": ("The journey's runs: loss of both sides.", "迁移过程中双方的损失。"),
    "run_loss": ("{name}: loss, {steps} step{steps_s}{state}", "{name}：损失，{steps} 步{state}"),
    "judgements": ("Verdicts", "结论"),
    "changes": ("Changes to the files", "文件改动"),
    "ledger": ("Ledger", "步骤记录"),
    "id": ("Step", "步骤"),
    "time": ("Time (UTC)", "时间 (UTC)"),
    "kind": ("Kind", "类型"),
    "about": ("About", "对象"),
    "stage": ("Stage", "阶段"),
    "verdict": ("Verdict", "结论"),
    "grade": ("Grade", "依据"),
    "files": ("The files", "文件状态"),
    "evidence": ("Evidence", "证据"),
    "on": ("Chip", "芯片"),
    "command": ("Command", "命令"),
    "by_rehearsed": ("rehearsed", "模拟"),
    "by_measured": ("measured", "实测"),
    "by_documented": ("documented", "文档"),
    "live": ("live, last change", "实时，最近更新"),
    "polling": ("asking every few seconds, last change", "轮询中，最近更新"),
    "gone": (
        "The server does not answer. What you see is from {time}; trying again.",
        "服务器无响应。当前内容更新于 {time}，正在重试。",
    ),
    "other": ("中文", "English"),
}  # fmt: skip


def say(key: str, lang: str, **fields: object) -> str:
    """The words for `key`; those that only a journey's report has are taken from there."""
    if key not in WORDS:
        return journey_words.say(key, lang, **fields)
    text = WORDS[key][LANGUAGES.index(Labels(lang).lang)]
    return fill(text, {name: str(value) for name, value in fields.items()})
