"""The words of a journey's report in English and Chinese."""

from __future__ import annotations

from joymigrate.report.labels import LANGUAGES, Labels

WORDS: dict[str, tuple[str, str]] = {
    "title": ("Migration of {project} to {chip}: {verdict}", "{project} 迁移到 {chip}：{verdict}"),
    "rehearsed": (
        "On the simulated chip: the vendor's real package, no hardware. Nothing here is a chip's "
        "result.",
        "在模拟芯片上运行：使用厂商真实软件包，无硬件。此处结果均不代表真实芯片。",
    ),
    "measured": ("Measured on the chip.", "在真实芯片上测得。"),
    "way": ("The way", "迁移过程"),
    "step": ("Step", "步骤"),
    "result": ("Result", "结果"),
    "seconds": ("Seconds", "秒"),
    "evidence": ("Evidence", "证据"),
    "repeat": ("By hand", "手动重现"),
    "next": ("What to do", "下一步"),
    "figures": ("Figures", "数据"),
    "pass": ("passed", "通过"),
    "fail": ("failed", "未通过"),
    "inconclusive": ("not decided", "未定"),
    "done": ("done", "完成"),
    "failed": ("failed", "失败"),
    "stopped": ("held by a gate", "被门限拦停"),
    "skipped": ("left out", "跳过"),
    "pending": ("not reached", "未到达"),
    "sites": ("sites", "处"),
    "automatic": ("rewritten automatically", "自动改写"),
    "on_chip": ("of the calls run on the chip", "的调用在芯片上执行"),
    "memory": ("peak memory", "显存峰值"),
    "verdict": ("verdict of the comparison", "比对结论"),
    "scan": ("Scan", "扫描"),
    "rewrite": ("Rewrite", "改写"),
    "rehearse": ("Run on the chip", "在芯片上运行"),
    "coverage": ("Operators", "算子覆盖"),
    "advice": ("Advice", "性能建议"),
    "verify": ("Precision", "精度比对"),
    "train": ("Training", "训练"),
    "serve": ("Serving", "推理服务"),
    "loss": ("Loss of both sides over steps.", "双方各步损失。"),
    "loss_axis": ("loss", "损失"),
    "step_axis": ("step", "步"),
    "baseline": ("baseline", "基线"),
    "chip": ("chip", "芯片"),
    "growth": ("Error over depth: slow growth is rounding, a jump is a fault.",
               "误差随深度变化：缓慢增长为舍入，突变为错误。"),
    "depth_axis": ("modules in the order of execution", "按执行顺序排列的模块"),
    "error_axis": ("relative error", "相对误差"),
    "lacking": ("Operators that the chip does not run", "芯片不执行的算子"),
    "operator": ("Operator", "算子"),
    "status": ("Status", "状态"),
    "calls": ("Calls", "调用次数"),
    "where": ("Where", "位置"),
    "back": ("The way back: joymigrate rollback {step}", "回退：joymigrate rollback {step}"),
}  # fmt: skip


def say(key: str, lang: str, **fields: object) -> str:
    """The words for `key`. An unknown key is our bug and raises KeyError."""
    text = WORDS[key][LANGUAGES.index(Labels(lang).lang)]
    return text.format(**fields) if fields else text
