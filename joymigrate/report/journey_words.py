"""The words of a journey's report in English and Chinese."""

from __future__ import annotations

from joymigrate.language import fill
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
    "repeat": ("Commands that repeat this step", "重现此步骤的命令"),
    "next": ("What to do", "下一步"),
    "next_of": ("What to do ({step}):", "下一步（{step}）："),
    "evidence_of": ("Evidence: {links} · {seconds}", "证据：{links} · {seconds}"),
    "figures": ("Figures", "数据"),
    "pass": ("passed", "通过"),
    "fail": ("failed", "未通过"),
    "inconclusive": ("not decided", "未定"),
    "done": ("done", "完成"),
    "failed": ("failed", "失败"),
    "stopped": ("stopped", "已停止"),
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
    "step_number": ("step {number}", "第 {number} 步"),
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
    "left_sites": ("Left to you: {count} site{count_s}", "需手动处理：{count} 处"),
    "report": ("Report: {path}", "报告：{path}"),
    "back": ("Undo: joymigrate rollback {step}", "回退：joymigrate rollback {step}"),
    # The page's parts.
    "summary": ("Summary", "概要"),
    "left": ("What is left to do", "剩余工作"),
    "menu_left": ("To do", "剩余"),
    "menu_origin": ("Provenance", "来源"),
    "nothing_left": ("Nothing that this journey knows of.", "本次迁移未发现剩余工作。"),
    "origin": ("Where this comes from", "来源与复现"),
    "from": ("From", "来源"),
    "more_in": ("More in {file}.", "更多见 {file}。"),
    "thinned": (
        "Not every row is shown here; the evidence has them all.",
        "此处未列出全部行，完整数据见证据文件。",
    ),
    "no_plots": (
        "The plots need matplotlib: pip install 'joymigrate[report]', then the same command again. "
        "Their figures stand below.",
        "绘图需要 matplotlib：执行 pip install 'joymigrate[report]' 后重新运行同一命令。"
        "数据见下表。",
    ),
    "evidence_note": (
        "Every figure links to the file that it was read from; pointing at it names the place in "
        "the file.",
        "每个数字都链接到其来源文件；鼠标悬停可见其在文件中的位置。",
    ),
    "about": ("What this step does", "此步骤的作用"),
    "took": ("took {seconds}", "用时 {seconds}"),
    "step_scan": ("Scan", "扫描"),
    "step_baseline": ("Original", "原程序"),
    "step_rewrite": ("Rewrite", "改写"),
    "step_rehearse": ("On the chip", "在芯片上运行"),
    "step_rehearsal": ("Rehearsal", "模拟运行"),
    "step_coverage": ("Operators", "算子覆盖"),
    "step_advice": ("Advice", "性能建议"),
    "step_verify": ("Precision", "精度比对"),
    "step_train": ("Training", "训练"),
    "step_serve": ("Serving", "推理服务"),
    "pass_rehearsed": ("passed in rehearsal", "模拟运行通过"),
    "fail_rehearsed": ("stopped in rehearsal", "模拟运行中止"),
    "inconclusive_rehearsed": ("not decided in rehearsal", "模拟运行未定"),
    # Plots and tables.
    "by_area": ("Sites by area", "各领域的位置数"),
    "by_area_note": (
        "How many places of each kind there are, and who changes them.",
        "每类位置的数量，以及由谁修改。",
    ),
    "by_area_left": (
        "How many places of each kind are left. Those rewritten before are not drawn.",
        "每类剩余位置的数量。此前已改写的未绘出。",
    ),
    "sites_axis": ("sites", "处数"),
    "area": ("Area", "领域"),
    "for_people": ("Left for people", "需人工处理"),
    "what": ("What", "内容"),
    "for_example": ("For example", "示例"),
    "sites_head": ("Sites", "处数"),
    "estimate": ("Estimate", "估算"),
    "file": ("File", "文件"),
    "change": ("Change", "改动"),
    "edits": ("Edits", "改写处数"),
    "file_modified": ("changed", "已修改"),
    "file_created": ("new", "新建"),
    "changed_files": ("Files that changed", "已改动的文件"),
    "patch": ("The whole change as a patch", "完整改动（补丁）"),
    "memory_plot": ("Memory over time", "显存随时间变化"),
    "memory_note": (
        "Memory that the program's tensors hold. Sampled over time; the dotted line is the exact "
        "peak, which may lie between two samples. The seconds are the simulation's, not a chip's.",
        "程序张量占用的显存，按时间采样；虚线为精确峰值，可能位于两次采样之间。"
        "时间为模拟时间，不代表芯片。",
    ),
    "memory_note_chip": (
        "Memory that the program's tensors hold, sampled over time; the dotted line is the exact "
        "peak, which may lie between two samples.",
        "程序张量占用的显存，按时间采样；虚线为精确峰值，可能位于两次采样之间。",
    ),
    "held_plot": ("What the memory holds", "显存组成"),
    "held_note": (
        "From the allocator's own record of the first optimiser steps. Activations: what a forward "
        "pass keeps for its backward pass, batches included. Other: temporary results and what the "
        "program keeps for itself. Sizes are as asked for; the allocator rounds them up, to "
        "{allocator} at the peak.",
        "取自分配器对前几个优化器步的记录。激活：前向为反向保留的张量，含批数据。"
        "其他：临时结果及程序自行保留的张量。均为申请的大小；分配器会向上取整，"
        "峰值为 {allocator}。",
    ),
    "held_note_of": ("Drawn: {name}, {device}.", "绘出：{name}，{device}。"),
    "weights": ("weights", "权重"),
    "gradients": ("gradients", "梯度"),
    "optimiser_states": ("optimiser states", "优化器状态"),
    "activations": ("activations", "激活"),
    "other": ("other", "其他"),
    "at_peak": ("At the peak", "峰值时"),
    "category": ("Category", "类别"),
    "steps_axis": ("optimiser steps", "优化器步"),
    "events_axis": ("allocations and releases", "分配与释放次数"),
    "program": ("the program", "程序"),
    "process": ("process {number}", "进程 {number}"),
    "processes_note": (
        "{shown} of {all} processes are drawn.", "共 {all} 个进程，绘出 {shown} 个。",
    ),
    "process_head": ("Process", "进程"),
    "peak_of": ("peak of {device}", "{device} 峰值"),
    "seconds_axis": ("seconds", "秒"),
    "mib_axis": ("MiB", "MiB"),
    "time": ("Time", "时间"),
    "held": ("Held", "占用"),
    "traps": ("What the chip refuses", "芯片不接受之处"),
    "refused": ("What", "内容"),
    "remedy": ("What to do", "处理方法"),
    "fell_back": ("Operators that ran on the CPU", "在 CPU 上执行的算子"),
    "coverage_plot": ("How much runs on the chip", "可在芯片上执行的比例"),
    "coverage_note": (
        "The same program counted in three ways. Time is that of this machine.",
        "同一程序的三种统计方式。时间为本机测得。",
    ),
    "coverage_note_chip": (
        "The same program counted in three ways. Time is that of the chip.",
        "同一程序的三种统计方式。时间为芯片上测得。",
    ),
    "coverage_note_simulated": (
        "The same program counted in three ways. It was recorded on the simulated chip: its time "
        "is the simulation's, not a chip's.",
        "同一程序的三种统计方式。在模拟芯片上记录：时间为模拟时间，不代表芯片。",
    ),
    "operators_note_chip": (
        "The operators that take most of the time on the chip. Purple: the chip lacks it.",
        "芯片上耗时最多的算子。紫色：芯片没有该算子。",
    ),
    "operators_note_simulated": (
        "The operators that take most of the simulation's time, which is not a chip's. Purple: the "
        "chip lacks it.",
        "模拟运行中耗时最多的算子，不代表芯片上的时间。紫色：芯片没有该算子。",
    ),
    "ms_axis_chip": ("milliseconds on the chip", "芯片上毫秒"),
    "ms_axis_simulated": ("milliseconds of the simulation", "模拟运行毫秒"),
    "share_ops": ("of the operators", "算子"),
    "share_calls": ("of the calls", "调用"),
    "share_time": ("of the time", "时间"),
    "of_all": ("Of all", "占比"),
    "on_the_chip": ("on the chip", "在芯片上"),
    "not_on_the_chip": ("not on the chip", "不在芯片上"),
    "operators_plot": ("Where the time goes", "时间分布"),
    "operators_note": (
        "The operators that take most of the time on this machine. Purple: the chip lacks it.",
        "本机上耗时最多的算子。紫色：芯片没有该算子。",
    ),
    "ms_axis": ("milliseconds on this machine", "本机毫秒"),
    "runs": ("Runs", "执行方式"),
    "native": ("on the chip", "芯片"),
    "fused": ("on the chip, fused", "芯片（融合）"),
    "composite": ("as other operators", "由其他算子组成"),
    "cpu_fallback": ("on the CPU", "CPU"),
    "missing": ("not at all", "无法执行"),
    "unknown": ("not known", "未知"),
    "instead": ("Instead", "替代方法"),
    "weight": ("Weight", "程度"),
    "hint": ("Hint", "建议"),
    "hints": ("Hints, the weightiest first", "建议（按程度排序）"),
    "share_of_time": ("Share of time", "时间占比"),
    "level_error": ("must", "必须"),
    "level_warning": ("costs time", "影响性能"),
    "level_note": ("worth a thought", "可考虑"),
    "side": ("Side", "侧"),
    "apart": ("relative difference", "相对差异"),
    "limit_of_mean": ("limit of the average", "平均限值"),
    "loss_note": (
        "Above: the loss of both sides; one curve may hide the other. Below: how far they are "
        "apart. A difference of 0 means equal in every printed digit. The average in the sentence "
        "above counts one in the last printed digit as rounding, not as a difference.",
        "上：两侧的损失，曲线可能重合。下：两侧差异。0 表示打印的每一位数字都相同。"
        "上文的平均值将末位相差 1 视为舍入，不计为差异。",
    ),
    "loss_plot": ("Loss of both sides", "两侧损失"),
    "speed_plot": ("Speed of training", "训练速度"),
    "speed_axis": ("steps per second", "每秒步数"),
    "speed_note": (
        "From the times at which the losses were printed. What came before the first one, start "
        "and warm-up, is not counted; what the program does between two of them is, an evaluation "
        "too.",
        "根据打印损失的时间计算。首次打印之前（启动与预热）不计；两次打印之间的一切均计入，"
        "包括评估。",
    ),
    "no_chip_speed": (
        "Only the baseline is shown: a simulated chip computes on the CPU, so its speed says "
        "nothing about the chip.",
        "仅显示基线：模拟芯片在 CPU 上计算，其速度不能说明芯片的速度。",
    ),
    "forward": ("forward", "前向"),
    "backward": ("backward", "反向"),
    "optimiser": ("optimiser", "优化器"),
    "phase": ("Phase", "阶段"),
    "module": ("Module", "模块"),
    "limit": ("limit", "限值"),
    "limit_first": ("limit, first step", "首步限值"),
    "limit_last": ("limit, last step", "末步限值"),
    "limit_phase": ("limit, {phase}", "{phase}限值"),
    "identical": ("equal", "相同"),
    "error_ratio": ("Error, as a multiple", "误差倍数"),
    "alone_plot": ("Each module by itself", "逐模块误差"),
    "ratio_axis": ("chip's error ÷ baseline's error", "芯片误差 ÷ 基线误差"),
    "alone_note": (
        "Each module gets the baseline's inputs. Its error against a more exact computation is "
        "divided by the baseline's own. 1 is as exact as the baseline; “equal” is the same to the "
        "last bit.",
        "每个模块使用基线的输入；其相对高精度结果的误差除以基线自身误差。"
        "1 表示与基线同样精确，“相同”表示逐位一致。",
    ),
    "growth_plot": ("Through the whole network", "贯穿整个网络"),
    "growth_note": (
        "Each module gets what the one before it computed. Slow growth is rounding; a jump is a "
        "fault.",
        "每个模块使用前一模块的输出。缓慢增长为舍入误差，突变为错误。",
    ),
    "stages": ("What was compared", "比对内容"),
    "compared": ("Compared", "已比对"),
    "recorded": ("Recorded", "已记录"),
    "stage_S0": ("Environment of both sides", "两侧环境"),
    "stage_S1": ("Same weights, same data", "权重与数据一致"),
    "stage_S2": ("Operators", "算子"),
    "stage_S3": ("Modules, each by itself, forward", "逐模块，前向"),
    "stage_S4": ("Modules, each by itself, with gradients", "逐模块，含梯度"),
    "stage_S5": ("Whole steps, run freely", "完整训练步"),
    "stage_S6": ("Loss", "损失"),
    "stage_S7": ("Generated text", "文本生成"),
    "stage_S8": ("The task's own measure", "任务指标"),
    # Provenance.
    "grade_rehearsed": (
        "Rehearsed: run on a simulated chip with the vendor's real package. No chip was involved. "
        "What computes the same here is expected to on the chip; only a run there proves it.",
        "模拟运行：使用厂商真实软件包在模拟芯片上运行，未使用真实芯片。此处一致预示芯片上一致，"
        "但须在芯片上运行才能证明。",
    ),
    "grade_measured": ("Measured: run on the chip itself.", "实测：在真实芯片上运行。"),
    "grade_documented": ("Documented: taken from documents.", "文档：取自文档。"),
    "how_known": ("How well this is known", "结果可信级别"),
    "the_chip": ("Chip", "芯片"),
    "simulated_as": ("Simulated model", "模拟型号"),
    "date": ("Date (UTC)", "日期（UTC）"),
    "commit": ("Commit before the change", "改动前的提交"),
    "changed_since": ("Files changed since that commit", "该提交之后改动的文件数"),
    "machine": ("Machine", "机器"),
    "version_of": ("{name} version", "{name} 版本"),
    "repeat_all": ("To repeat everything", "完整复现"),
    "go_back": ("To undo the change", "撤销改动"),
    "hashes": ("Evidence and its SHA-256", "证据文件及 SHA-256"),
    "hash_changed": ("changed since it was recorded", "记录之后已改动"),
    "in_ledger": ("as the ledger has it", "与步骤记录一致"),
    "not_in_ledger": ("not in the ledger", "不在步骤记录中"),
    # What is left.
    "left_gate": ("First: {what}", "首先：{what}"),
    "left_operator": (
        "Replace the operator {what}, which the chip lacks.", "替换芯片没有的算子 {what}。",
    ),
    "left_advice": ("For speed: {title}: {action}", "提升性能：{title}。{action}"),
    "left_chip": (
        "Take the same journey on a machine that has the chip; what is rehearsed here is measured "
        "there.",
        "在装有芯片的机器上重做同样的迁移，将此处的模拟结果变为实测结果。",
    ),
    "left_entry": (
        "Name the program with --entry, so that it is run and compared.",
        "用 --entry 指定程序，以便运行和比对。",
    ),
    "tile_automatic": (
        "of {sites} site{sites_s} rewritten automatically", "共 {sites} 处，自动改写",
    ),
    "tile_by_hand": ("site{by_hand_s} left to people", "处需人工处理"),
    "tile_loss": ("average difference of the losses", "损失平均差异"),
    "tile_serve": ("until the server was ready", "后服务就绪"),
    "tile_estimate": ("about {minutes}, an estimate", "约 {minutes}（估算）"),
    "tile_memory": ("of {memory} of the device", "共 {memory}"),
    "tile_losses": ("over {losses} step{losses_s}", "共 {losses} 步"),
}  # fmt: skip


def say(key: str, lang: str, **fields: object) -> str:
    """The words for `key`. An unknown key is our bug and raises KeyError."""
    text = WORDS[key][LANGUAGES.index(Labels(lang).lang)]
    return fill(text, {name: str(value) for name, value in fields.items()})
