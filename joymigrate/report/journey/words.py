"""The sentences of a journey's report in English and Chinese.

`{name}` stands for a figure, `{name_s}` for the plural's s beside it.
"""

from __future__ import annotations

WORDS: dict[str, tuple[str, str]] = {
    # What a step is for, to somebody who never saw it.
    "about_scan": (
        "Reads the source, without running it, and lists every place that only works on NVIDIA "
        "GPUs: device names, CUDA calls, packages, shell scripts, settings.",
        "只读源代码、不运行，列出所有仅适用于 NVIDIA GPU 的位置：设备名、CUDA 调用、软件包、"
        "脚本和配置。",
    ),
    "about_baseline": (
        "Runs the program as it was before the migration, on this machine's GPU or CPU, and "
        "records what every part of the model computes: what the chip is held against.",
        "在本机 GPU 或 CPU 上运行迁移前的程序，并记录模型每一部分的计算结果，作为芯片比对的基线。",
    ),
    "about_rewrite": (
        "Changes the places that can be changed with certainty. The rest is listed, not touched.",
        "改写可以确定的位置；其余只列出，不改动。",
    ),
    "about_rehearse": (
        "Runs the program on a simulated chip: the vendor's own PyTorch package, unchanged, with "
        "a stand-in for the hardware. What would break, run slowly or need too much memory shows "
        "here. Times mean nothing.",
        "在模拟芯片上运行程序：使用厂商未经修改的 PyTorch 软件包，仅以软件代替硬件。"
        "会出错、变慢或显存不足之处在此显现。运行时间没有意义。",
    ),
    "about_rehearse_chip": ("Runs the program on the chip.", "在芯片上运行程序。"),
    "about_coverage": (
        "A program is made of operators: additions, convolutions, sorts. Each must exist on the "
        "chip. One that does not runs on the CPU, which is slow, or not at all.",
        "程序由算子组成：加法、卷积、排序等，每个都须在芯片上实现。没有的算子会回退到 CPU 执行"
        "（较慢），或无法执行。",
    ),
    "about_advice": (
        "What would make the program faster on the chip. Hints, not errors.",
        "怎样让程序在芯片上更快。仅为建议，不是错误。",
    ),
    "about_verify": (
        "Runs the same training steps on both sides, from the same weights with the same data, "
        "and compares what every part of the model computes. The limits allow rounding; a wrong "
        "operator exceeds them.",
        "两侧使用相同权重和数据执行相同训练步，比较模型每一部分的计算结果。"
        "限值允许舍入误差，错误的算子会超出限值。",
    ),
    "about_train": (
        "Runs the program on both sides and compares the losses that it prints.",
        "在两侧运行程序，比较其打印的损失。",
    ),
    "about_serve": (
        "Starts a server with the model's weights and sends it one request.",
        "用模型权重启动服务，并发送一个请求。",
    ),
    # One line per step: the terminal, and the line of steps.
    "short_scan": (
        "{safe} of {sites} site{sites_s} automatic, {by_hand} by hand",
        "{sites} 处：自动 {safe}，人工 {by_hand}",
    ),
    "short_scan_review": (
        "{safe} of {sites} site{sites_s} automatic, {unsafe} to review, {by_hand} by hand",
        "{sites} 处：自动 {safe}，需审阅 {unsafe}，人工 {by_hand}",
    ),
    "short_rewrite": (
        "{edits} edit{edits_s} in {files} file{files_s}", "{files} 个文件，{edits} 处改写",
    ),
    "short_baseline": (
        "the original runs on this machine's {device}", "原程序可在本机 {device} 上运行",
    ),
    "short_empty": (
        "ran to its end on this machine's {device}, without a torch module",
        "在本机 {device} 上运行完毕，未调用 torch 模块",
    ),
    "short_needs_gpu": ("needs a GPU, and there is none here", "需要 GPU，本机没有"),
    "short_given": ("a recording from {device}", "来自 {device} 的记录"),
    "short_nothing": ("nothing to rewrite", "无需改写"),
    "short_rehearse": (
        "ran to its end; {fallbacks} operator{fallbacks_s} on the CPU, peak {peak}",
        "运行完毕；{fallbacks} 个算子在 CPU 上，显存峰值 {peak}",
    ),
    "short_chip": ("ran to its end on the chip", "在芯片上运行完毕"),
    "short_coverage": (
        "{calls} of the calls, {ops} of the operators on the chip",
        "{calls} 的调用、{ops} 的算子可在芯片上执行",
    ),
    "short_advice": ("{advice} hint{advice_s}", "{advice} 条建议"),
    "short_verify": (
        "{compared} of {recorded} values compared: {verdict}",
        "比对 {compared}/{recorded} 个值：{verdict}",
    ),
    "short_train": (
        "{losses} loss{losses_es} on both sides: {verdict}", "两侧各 {losses} 个损失：{verdict}",
    ),
    "short_serve": (
        "ready after {ready}, {tokens} token{tokens_s} in {took}",
        "{ready} 后就绪，{took} 生成 {tokens} 个 token",
    ),
    # What a step found.
    "found_scan": (
        "{sites} site{sites_s} in {files} of {scanned} file{scanned_s}: {safe} rewritten "
        "automatically ({automatic}), {unsafe} that need a look, {by_hand} for people.",
        "{scanned} 个文件中的 {files} 个共有 {sites} 处：{safe} 处自动改写（{automatic}），"
        "{unsafe} 处需审阅，{by_hand} 处需人工处理。",
    ),
    "found_scan_again": (
        "{sites} site{sites_s} in all: {safe} rewritten automatically ({automatic}), {before} of "
        "them before this journey, {unsafe} that need a look, {by_hand} for people.",
        "共 {sites} 处：{safe} 处自动改写（{automatic}），其中 {before} 处在此前已改写，"
        "{unsafe} 处需审阅，{by_hand} 处需人工处理。",
    ),
    "found_effort": (
        "Work that is left, as an estimate: {minutes}.", "剩余工作量估算：{minutes}。",
    ),
    "found_empty": (
        "The original program ran to its end on this machine's {device} and called no torch "
        "module there, so there is nothing to hold the chip against. Programs that look for a "
        "device and end without one do this.",
        "原程序在本机 {device} 上运行完毕，但未调用 torch 模块，因此没有可与芯片比对的内容。"
        "检测不到设备即退出的程序会出现这种情况。",
    ),
    "found_needs_gpu": (
        "The original needs an NVIDIA GPU, and this machine has none. The chip is compared with "
        "the rewritten program instead. A recording from a machine with a GPU would prove more.",
        "原程序需要 NVIDIA GPU，而本机没有。因此以改写后的程序作为比对基线；"
        "来自 GPU 机器的记录更有说服力。",
    ),
    "found_baseline": (
        "The original program ran to its end on this machine's {device}. It printed {losses} "
        "loss{losses_es}.",
        "原程序在本机的 {device} 上运行完毕，打印了 {losses} 个损失。",
    ),
    "found_rewrite": (
        "{edits} edit{edits_s} in {files} file{files_s}, as one change that can be undone whole.",
        "改写 {files} 个文件共 {edits} 处，作为一次可整体撤销的改动。",
    ),
    "found_style_agnostic": (
        "The code keeps running on NVIDIA GPUs, too.", "代码仍可在 NVIDIA GPU 上运行。",
    ),
    "found_nothing": (
        "There was nothing to rewrite, or it was rewritten before.",
        "没有需要改写之处，或此前已改写。",
    ),
    "found_rehearse": (
        "The program ended with exit code {code} on a simulated {soc}: {calls} operator "
        "call{calls_s}, {fallbacks} operator{fallbacks_s} that the chip left to the CPU, at most "
        "{peak} of {memory} memory on one device.",
        "程序在模拟的 {soc} 上以退出码 {code} 结束：{calls} 次算子调用，"
        "{fallbacks} 个算子回退到 CPU，"
        "单设备显存最高 {peak}，共 {memory}。",
    ),
    "found_checked": (
        "Of the operators, {vendor} were checked by the vendor's own code, {reference} were "
        "computed by a reference of joymigrate, {alias} by PyTorch's CPU code alone.",
        "算子中 {vendor} 由厂商代码校验，{reference} 由 joymigrate 的参考实现计算，"
        "{alias} 仅由 PyTorch 的 CPU 代码计算。",
    ),
    "found_chip": (
        "The program ended with exit code {code} on the chip.",
        "程序在芯片上以退出码 {code} 结束。",
    ),
    "found_chip_peak": (
        "One device held at most {peak}.", "单个设备最多占用 {peak} 显存。",
    ),
    "found_held": (
        "At the fullest moment of the first {steps} optimiser step{steps_s} its tensors held "
        "{total}: weights {weights}, gradients {gradients}, optimiser states {optimiser}, "
        "activations {activations}, other {other}.",
        "前 {steps} 个优化器步中占用最多时，张量共占 {total}：权重 {weights}，梯度 {gradients}，"
        "优化器状态 {optimiser}，激活 {activations}，其他 {other}。",
    ),
    "found_held_unstepped": (
        "At the fullest moment its tensors held {total}: weights {weights}, other {other}.",
        "占用最多时，张量共占 {total}：权重 {weights}，其他 {other}。",
    ),
    "found_held_later": (
        "Later on the program held more, up to {peak}; of what, was not recorded.",
        "此后程序占用更多，最高 {peak}，其组成未记录。",
    ),
    "found_coverage_chip": (
        "The program uses {operators} operator{operators_s}. {ops} of them run on the chip; they "
        "make {calls} of the calls, and {time} of the time on the chip.",
        "程序使用 {operators} 个算子，其中 {ops} 可在芯片上执行，占调用的 {calls}、芯片上耗时的 "
        "{time}。",
    ),
    "found_coverage_simulated": (
        "The program uses {operators} operator{operators_s}. {ops} of them run on the chip; they "
        "make {calls} of the calls. It was recorded on the simulated chip, as it does not run here "
        "without a device.",
        "程序使用 {operators} 个算子，其中 {ops} 可在芯片上执行，占调用的 {calls}。"
        "程序在本机没有设备时无法运行，因此在模拟芯片上记录。",
    ),
    "found_coverage": (
        "The program uses {operators} operator{operators_s}. {ops} of them run on the chip; they "
        "make {calls} of the calls, and {time} of the time that was measured on this machine.",
        "程序使用 {operators} 个算子，其中 {ops} 可在芯片上执行，占调用的 {calls}，"
        "占本机测得时间的 {time}。",
    ),
    "found_advice": (
        "Hints: {errors} that must be solved, {warnings} that cost time, {notes} worth a thought.",
        "必须解决 {errors} 条，影响性能 {warnings} 条，可考虑 {notes} 条。",
    ),
    "found_verify": (
        "{compared} of {recorded} recorded value{recorded_s} were compared, in {modules} of the "
        "modules. Verdict: {verdict}.",
        "已记录 {recorded} 个值，比对 {compared} 个，覆盖 {modules} 的模块。结论：{verdict}。",
    ),
    "found_first": (
        "The first difference that matters is in {module}, {phase}, step {step}: {value}, where "
        "{limit} is allowed.",
        "首个超限差异位于 {module}，{phase}，第 {step} 步：{value}，限值 {limit}。",
    ),
    "found_train": (
        "{losses} loss{losses_es} on either side, on average {mean} apart, {most} at most; the "
        "average may be {limit}. Verdict: {verdict}.",
        "两侧各 {losses} 个损失，平均相差 {mean}，最大 {most}；平均限值 {limit}。结论：{verdict}。",
    ),
    "found_speed": (
        "Speed of the baseline on this machine: {rate} steps per second (median).",
        "基线在本机的速度：每秒 {rate} 步（各步的中位数）。",
    ),
    "found_printed": (
        "The program itself prints {printed} {unit}.", "程序自身打印的速度为 {printed} {unit}。",
    ),
    "found_speed_both": (
        "Speed: {chip} steps per second on the chip, {rate} on the baseline (medians).",
        "速度（各步的中位数）：芯片每秒 {chip} 步，基线每秒 {rate} 步。",
    ),
    "found_serve": (
        "The server was ready after {ready} and answered {tokens} token{tokens_s} in {took}.",
        "服务在 {ready} 后就绪，并在 {took} 内生成 {tokens} 个 token。",
    ),
    # Gates: limits that hold a journey.
    "gate_automatic": (
        "{found} of the sites are rewritten automatically; your limit asks for {limit} or more.",
        "自动改写比例为 {found}，低于您设定的下限 {limit}。",
    ),
    "gate_by_hand": (
        "{found} site{found_s} are left to people; your limit allows {limit}.",
        "需人工处理 {found} 处，超过您设定的上限 {limit}。",
    ),
    "gate_baseline": (
        "The program fails before anything was changed, with exit code {found}.",
        "改动之前程序即已失败，退出码 {found}。",
    ),
    "gate_serve": (
        "The served model gave no answer.", "已启动的模型服务没有给出回答。",
    ),
    "gate_rehearse": (
        "The program ended with exit code {found}, which says that it failed.",
        "程序以退出码 {found} 结束，表示运行失败。",
    ),
    "gate_fallbacks": (
        "{found} operator{found_s} ran on the CPU; your limit allows {limit}.",
        "{found} 个算子在 CPU 上执行，超过您设定的上限 {limit}。",
    ),
    "gate_memory_gib": (
        "{found} GiB on one device; your limit allows {limit} GiB.",
        "单设备使用 {found} GiB，超过您设定的上限 {limit} GiB。",
    ),
    "gate_coverage": (
        "{found} % of the calls run on the chip; your limit asks for {limit} % or more.",
        "{found} % 的调用可在芯片上执行，低于您设定的下限 {limit} %。",
    ),
    "gate_verify": (
        "The comparison's verdict is “{found}”; to go on it has to be “{limit}”.",
        "比对结论为“{found}”，须为“{limit}”方可继续。",
    ),
    "gate_loss": (
        "The verdict on the losses is “{found}”; to go on it has to be “{limit}”.",
        "损失比对结论为“{found}”，须为“{limit}”方可继续。",
    ),
    "worst_pass": ("passed", "通过"),
    "worst_inconclusive": ("passed or not decided", "通过或未定"),
    # Why a step was left out; the English text is what the journey notes.
    "no_entry": ("no program was named with --entry", "未用 --entry 指定程序"),
    "no_model": (
        "no folder with a language model's weights", "没有包含语言模型权重的文件夹",
    ),
    "no_losses": (
        "both runs ended well; the program prints no loss to compare (a line with `loss 1.23`)",
        "两侧均运行完毕；程序未打印可比较的损失（如 `loss 1.23`）",
    ),
    "no_reach": ("not reached", "未到达"),
    # What a comparison rests on; the English text is what the journey notes.
    "of_original": ("the original on this machine's {device}", "本机 {device} 上的原程序"),
    "of_rewritten": (
        "the rewritten program on this machine's {device}", "本机 {device} 上改写后的程序",
    ),
    "of_given": ("the given baseline ({device})", "给定的基线（{device}）"),
    "against": ("Compared with {of}.", "比对对象：{of}。"),
    "left_by_hand": (
        "By hand: {what}, such as {sample} ({sites} site{sites_s}, about {minutes}).",
        "人工修改：{what}，例如 {sample}（{sites} 处，约 {minutes}）。",
    ),
    "left_by_hand_plain": (
        "By hand: {what} ({sites} site{sites_s}, about {minutes}).",
        "人工修改：{what}（{sites} 处，约 {minutes}）。",
    ),
    # The whole.
    "all_well": (
        "Every step that could be taken ended well.", "所有可执行的步骤均顺利完成。",
    ),
    "not_decided": (
        "Nothing failed, but not everything could be decided.", "没有失败，但并非全部得出结论。",
    ),
    "held_at": (
        "The journey stopped at “{step}”. What was done before it stays done.",
        "迁移在“{step}”停止。此前完成的步骤仍然有效。",
    ),
}  # fmt: skip
