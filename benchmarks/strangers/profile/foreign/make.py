"""Writes the foreign traces (no tool of ours is used): a GPU's Chrome trace as torch.profiler writes it, and an Ascend kernel_details.csv."""
import csv, gzip, json, os
os.chdir(os.path.dirname(os.path.abspath(__file__)))
# p08: gradients go to the host, AdamW runs there, weights go back (pageable memory) - 3 steps
ev, t, corr = [], 1000.0, 100
P = dict(pid=4242, tid=4242)
def cpu(name, ts, dur, cat="cpu_op", **args): ev.append(dict(ph="X", cat=cat, name=name, ts=round(ts, 3), dur=round(dur, 3), **P, args=args))
def gpu(name, ts, dur, cat, c, **args): ev.append(dict(ph="X", cat=cat, name=name, ts=round(ts, 3), dur=round(dur, 3), pid=0, tid=7, args=dict(device=0, stream=7, correlation=c, **args)))
shapes = [[4096, 1024], [1024, 4096], [1024, 1024], [1024, 1024], [1024], [32000, 1024]]
for step in range(3):
    s0 = t
    for ph, k in (("", 12), ("bw", 24)):
        for i in range(k):
            corr += 1; n = "aten::mm"
            cpu(n, t, 22, **{"Input Dims": [[2048, 1024], [1024, 4096]], "Input type": ["c10::BFloat16", "c10::BFloat16"], "External id": corr})
            cpu("cudaLaunchKernel", t + 9, 6, "cuda_runtime", correlation=corr, **{"External id": corr})
            gpu("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1", t + 30, 61, "kernel", corr, **{"External id": corr, "grid": [16, 32, 1], "block": [384, 1, 1]}); t += 64
    for sh in shapes:                                          # gradients to the host
        b = 4
        for d in sh: b *= d
        us = b / 3.1e3 + 12; corr += 1
        cpu("aten::to", t, us + 14, **{"Input Dims": [sh], "Input type": ["float"], "External id": corr})
        cpu("aten::_to_copy", t + 1, us + 12, **{"Input Dims": [sh], "Input type": ["float"], "External id": corr})
        cpu("aten::copy_", t + 3, us + 9, **{"Input Dims": [sh, sh], "Input type": ["float", "float"], "External id": corr})
        cpu("cudaMemcpyAsync", t + 4, 5, "cuda_runtime", correlation=corr, **{"External id": corr}); cpu("cudaStreamSynchronize", t + 9, us, "cuda_runtime", correlation=corr + 50000)
        gpu("Memcpy DtoH (Device -> Pageable)", t + 8, us - 2, "gpu_memcpy", corr, bytes=b, **{"memory bandwidth (GB/s)": 3.1, "External id": corr}); t += us + 20
    cpu("Optimizer.step#AdamW.step", t, 9000, "user_annotation")
    for sh in shapes:
        for n, d in (("aten::lerp_", 380), ("aten::mul_", 300), ("aten::addcmul_", 420), ("aten::addcdiv_", 390)): corr += 1; cpu(n, t, d, **{"Input Dims": [sh, sh], "Input type": ["float", "float"], "External id": corr}); t += d + 4
    for sh in shapes:                                          # weights back
        b = 4
        for d in sh: b *= d
        us = b / 3.4e3 + 10; corr += 1
        cpu("aten::copy_", t, us + 9, **{"Input Dims": [sh, sh], "Input type": ["float", "float"], "External id": corr})
        cpu("cudaMemcpyAsync", t + 2, us + 4, "cuda_runtime", correlation=corr, **{"External id": corr})
        gpu("Memcpy HtoD (Pageable -> Device)", t + 5, us, "gpu_memcpy", corr, bytes=b, **{"memory bandwidth (GB/s)": 3.4, "External id": corr}); t += us + 16
    cpu(f"ProfilerStep#{step}", s0, t - s0, "user_annotation"); t += 40
ev += [dict(ph="M", name="process_name", pid=4242, tid=0, ts=0, args={"name": "python3"}), dict(ph="M", name="process_name", pid=0, tid=0, ts=0, args={"name": "GPU 0"}), dict(ph="M", name="process_labels", pid=0, tid=0, ts=0, args={"labels": "GPU 0"})]
doc = dict(schemaVersion=1, deviceProperties=[dict(id=0, name="NVIDIA H100 80GB HBM3", totalGlobalMem=85029158912, computeMajor=9, computeMinor=0, numSms=132)], traceEvents=ev, traceName="worker0.pt.trace.json")
gzip.open("p08_host_copies.pt.trace.json.gz", "wt").write(json.dumps(doc))
k = sum(e["dur"] for e in ev if e.get("cat") == "kernel"); m = sum(e["dur"] for e in ev if e.get("cat") == "gpu_memcpy"); print("p08: kernels", round(k, 1), "us, copies", round(m, 1), "us, device total", round(k + m, 1), "us; steps", round(t - 1000, 1), "us")
# p11: Ascend profile; Unique2 and NonZero on AI_CPU eat most of the device time
H = ["Step Id", "Device_id", "Model ID", "Task ID", "Stream ID", "Name", "Type", "OP State", "Accelerator Core", "Start Time(us)", "Duration(us)", "Wait Time(us)", "Block Dim", "Mix Block Dim", "HF32 Eligible", "Input Shapes", "Input Data Types", "Input Formats", "Output Shapes", "Output Data Types", "Output Formats", "Context ID"]
rows, t, tot = [], 1780000000000.0, {}
def row(name, typ, core, dur, ins, dt, fm="ND", outs=None, bd=20):
    global t
    tot[core] = tot.get(core, 0) + dur
    rows.append([1, 0, 4294967295, len(rows), 2, name, typ, "dynamic", core, f"{t:.3f}\t", round(dur, 3), 1.2, bd if core != "AI_CPU" else 0, 0, "NO", f'"{ins}"', dt, fm, f'"{outs or ins.split(";")[0]}"', dt.split(";")[0], fm.split(";")[0], "N/A"]); t += dur + 1.2
for s in range(8):
    for l in range(6):
        row(f"aclnnMatmul_MatMulCommon_MatMulV2", "MatMulV2", "AI_CORE", 48.2 + l, "2048,512;512,2048", "DT_BF16;DT_BF16", "ND;ND", "2048,2048")
        row("aclnnAdd_AddAiCore_Add", "Add", "AI_VECTOR_CORE", 9.7, "2048,2048;2048,2048", "DT_BF16;DT_BF16", "ND;ND", bd=40)
        row("aclnnGelu_GeluAiCore_Gelu", "Gelu", "AI_VECTOR_CORE", 11.4, "2048,2048", "DT_BF16", bd=40)
    row("aclnnUnique2_UniqueWithCountsAndSorting_UniqueWithCountsAndSorting", "UniqueWithCountsAndSorting", "AI_CPU", 1460.5 + 10 * s, "65536", "DT_INT64")
    row("aclnnNonzero_NonZeroAiCpu_NonZero", "NonZero", "AI_CPU", 212.3, "65536", "DT_BOOL")
csv.writer(open("p11_kernel_details.csv", "w", newline="")).writerows([H] + rows)
print("p11:", {a: round(b, 1) for a, b in tot.items()}, "sum", round(sum(tot.values()), 1))
