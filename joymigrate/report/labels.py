"""The words of our reports in English and Chinese. Longer texts are in the catalogues."""

from __future__ import annotations

from joymigrate.language import LANGUAGES, Language
from joymigrate.rewrite.effort import MINUTES_PER_DAY, EffortModel, minutes_text

__all__ = ["AREAS", "LANGUAGES", "WORDS", "Labels"]

WORDS: dict[str, tuple[str, str]] = {
    "title": ("Migration readiness", "迁移就绪度"),
    "title_of": ("Migration readiness: {name}", "迁移就绪度：{name}"),
    "in_files": ("{number} Files; {read}", "涉及 {number} 个文件；{read}"),
    "portfolio_title": ("Migration portfolio", "迁移项目总览"),
    "summary": ("Summary", "概要"),
    "areas": ("By area", "按领域"),
    "area": ("Area", "领域"),
    "manual": ("Work by hand, the heaviest first", "人工工作（按工作量排序）"),
    "blockers": ("Blockers", "阻碍项"),
    "blocker": ("blocker", "阻碍项"),
    "blockers_note": (
        "One site of these takes an hour or more. Decide about them first.",
        "此类每处需一小时以上，建议优先评估。",
    ),
    "no_blockers": ("None found.", "未发现。"),
    "findings": ("Findings", "发现"),
    "skipped": ("Files not read", "未读取的文件"),
    "loose_ends": ("Loose ends", "其他提示"),
    "unused": ("Unused ignore comments", "未生效的忽略注释"),
    "stale": ("Stale baseline entries", "已失效的基线条目"),
    "kept": ("Mentions that stay", "保留不改的内容"),
    "model": ("How effort is counted", "工作量估算方法"),
    "model_note": (
        "Estimates, not measurements. Set your own figures in [tool.joymigrate.effort].",
        "为估算值而非实测，可在 [tool.joymigrate.effort] 中调整。",
    ),
    "model_safe": (
        "a safe edit: {minutes} to read in the diff",
        "安全改写：每处 {minutes}（审阅 diff）",
    ),
    "model_unsafe": (
        "an --unsafe edit: {minutes} to review and test",
        "--unsafe 改写：每处 {minutes}（审阅并测试）",
    ),
    "model_report": ("a site by hand: {minutes}", "人工处理：每处 {minutes}"),
    "model_weight": (
        "a site by hand: what its rule weighs",
        "人工处理：每处按其规则的权重计",
    ),
    "model_repeat": (
        "a further site of the rule in the same file, or with the same text: {share} of that",
        "同一规则在同一文件或相同文本的后续处：按 {share} 计",
    ),
    "model_learned": (
        "a rule that an earlier repository solved by hand: {share} of that",
        "前序仓库已人工解决的规则：按 {share} 计",
    ),
    "estimate": ("an estimate", "估算值"),
    "with_review": ("written with --unsafe", "使用 --unsafe 改写"),
    "site": ("site", "处"),
    "sites": ("Sites", "处数"),
    "files": ("Files", "文件数"),
    "file": ("File", "文件"),
    "effort": ("Effort", "工作量"),
    "rule": ("Rule", "规则"),
    "what": ("What", "内容"),
    "reason": ("Reason", "原因"),
    "automatic": ("automatic", "可自动改写"),
    "automatic_unsafe": ("with --unsafe", "含 --unsafe"),
    "safe": ("safe", "安全"),
    "unsafe": ("to review", "需审阅"),
    "report": ("by hand", "人工"),
    "by_hand": ("by hand", "人工"),
    "places": ("Files with the most work", "工作量最大的文件"),
    "menu_places": ("Files", "文件"),
    "menu_by_hand": ("By hand", "人工工作"),
    "all": ("all", "全部"),
    "search": ("Search path, message or code", "搜索路径、说明或代码"),
    "filters": ("Filters", "筛选"),
    "expand": ("Open all", "全部展开"),
    "collapse": ("Close all", "全部收起"),
    "theme": ("Light or dark", "明暗切换"),
    "shown": ("shown", "已显示"),
    "more": ("Show more", "显示更多"),
    "nothing": ("Nothing to do.", "无需改动。"),
    "no_match": ("No finding matches these filters.", "没有符合筛选条件的结果。"),
    "no_script": (
        "The list of findings needs JavaScript; everything above doesn't.",
        "发现列表需要启用 JavaScript，其余内容不受影响。",
    ),
    "left_out": (
        "Details of {number} more files are left out here; the HTML report has them.",
        "另有 {number} 个文件的详情未列出，见 HTML 报告。",
    ),
    "more_rules": ("… and {number} more rules.", "……另有 {number} 条规则。"),
    "cell": ("cell", "单元格"),
    "line": ("line", "行"),
    "lines": ("lines of code", "行代码"),
    "files_read": ("files read", "个文件已读取"),
    "from_to": ("{origin} → {to}, {style} style", "{origin} → {to}，{style} 风格"),
    "written": ("Written {when} by joymigrate {version}", "joymigrate {version} 生成于 {when}"),
    "suppressed": ("silenced by ignore comments", "处已被注释忽略"),
    "known": ("known from the baseline", "处已记录于基线"),
    "since": ("Only lines new since {base}", "仅统计自 {base} 以来的新增行"),
    "repository": ("Repository", "仓库"),
    "chip": ("Chip", "芯片"),
    "order": ("Order", "顺序"),
    "alone": ("Alone", "单独实施"),
    "shared": ("Shared work by hand", "共性人工工作"),
    "in_repositories": ("Repositories", "涉及仓库"),
    "ranking": ("Suggested order", "建议顺序"),
    "ranking_note": (
        "The cheapest next, knowing what the ones before it solved.",
        "每一步选择工作量最小者，并计入前序仓库已解决的共性问题。",
    ),
    "repositories": ("repositories", "个仓库"),
    "tier": ("Tier", "级别"),
    "why": ("Why", "原因"),
    "reference": ("Reference", "参考"),
    "examples": ("Examples", "示例"),
    "before": ("Before", "改写前"),
    "after": ("After", "改写后"),
    "left_alone": ("Left alone", "保持不变"),
    "reported": ("Reported, not rewritten", "仅报告，不改写"),
    "weight": ("by hand, a site takes about", "人工处理每处约需"),
    "writing": ("What is written", "写入内容"),
    "note_safe": ("joymigrate rewrite does it", "joymigrate rewrite 自动改写"),
    "note_unsafe": (
        "joymigrate rewrite --unsafe does it; review the result",
        "joymigrate rewrite --unsafe 改写，需审阅结果",
    ),
    "note_report": ("reported, not rewritten", "仅报告，不改写"),
    "silence": ("Silence one site with", "忽略单处"),
    "path": ("Path", "路径"),
    "text": ("Text", "文本"),
    "kind": ("Kind", "类型"),
    "skip_to": ("Skip to the content", "跳到正文"),
}

AREAS: dict[str, str] = {
    "device": "设备接口",
    "distributed": "分布式通信",
    "amp": "混合精度",
    "profiler": "性能采集",
    "environment": "环境变量",
    "tools": "工具",
    "launch": "启动方式",
    "packages": "依赖包",
    "kernels": "自定义算子",
    "numerics": "数据类型",
    "dynamic": "动态形状",
    "compile": "编译与图",
    "files": "文件",
}


class Labels:
    """The words of one language: `say("sites")`. An unknown key is our bug and raises KeyError."""

    def __init__(self, lang: str = "en") -> None:
        self.tell = Language(lang)
        self.lang = lang

    def __call__(self, key: str, **fields: object) -> str:
        """The words for `key`, with its fields filled in."""
        text = WORDS[key][LANGUAGES.index(self.lang)]
        return text.format(**fields) if fields else text

    def area(self, name: str) -> str:
        """An area's name; one that a plug-in adds keeps its own."""
        return AREAS.get(name, name) if self.lang == "zh" else name

    def duration(self, minutes: float) -> str:
        """A duration as people say it; a day has eight hours."""
        if self.lang == "en":
            return minutes_text(minutes)
        if minutes == 0:
            return "0 分钟"
        if minutes < 1:
            return f"{minutes * 60:.0f} 秒"
        if minutes < 90:
            return f"{minutes:.0f} 分钟"
        if minutes < MINUTES_PER_DAY * 1.5:
            return f"{minutes / 60:.1f} 小时"
        return f"{minutes / MINUTES_PER_DAY:.1f} 人日"

    def model(self, model: EffortModel, *, portfolio: bool = False) -> list[str]:
        """An effort model in words, one fact per line."""
        lines = [
            self("model_safe", minutes=self.duration(model.safe)),
            self("model_unsafe", minutes=self.duration(model.unsafe)),
            self("model_weight")
            if model.report is None
            else self("model_report", minutes=self.duration(model.report)),
            self("model_repeat", share=f"{model.repeat:.0%}"),
        ]
        if portfolio:
            lines.append(self("model_learned", share=f"{model.learned:.0%}"))
        lines += [f"{self.area(key)}: {self.duration(m)}" for key, m in model.areas.items()]
        return lines + [f"{key}: {self.duration(m)}" for key, m in model.rules.items()]
