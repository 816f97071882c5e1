// Our own stand-ins for launching, tiling and logging: kernels are recorded, not launched.
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include "opdev/platform.h"
#include "opdev/op_executor.h"
#include "opdev/op_def.h"
#include "opdev/op_arg_def.h"
#include "opdev/aicpu/aicpu_task.h"
#include "op_run_context.h"
#include "shape_inference.h"
#include "register/op_impl_registry_base.h"
static thread_local std::string g_err, g_kern; static thread_local int g_missing = 0; static int g_v = getenv("JOY_HOST_TRACE") ? atoi(getenv("JOY_HOST_TRACE")) : 0;
extern "C" __attribute__((visibility("default"))) const char* joy_host_error() { return g_err.c_str(); }
extern "C" __attribute__((visibility("default"))) const char* joy_host_kernels() { return g_kern.c_str(); }
extern "C" __attribute__((visibility("default"))) void joy_host_clear() { g_err.clear(); g_kern.clear(); g_missing = 0; }
extern "C" __attribute__((visibility("default"))) int joy_host_shapes_missing() { return g_missing; }
void ReportErrorMessageInner(const std::string& code, const char* fmt, ...) { char b[2048]; va_list a; va_start(a, fmt); vsnprintf(b, sizeof b, fmt, a); va_end(a);
  g_err += code + ": " + b + "\n"; if (g_v) fprintf(stderr, "  [%s] %s\n", code.c_str(), b); }
void DlogRecordInner(int32_t, int32_t level, const char* fmt, ...) { if (g_v < 2) return; char b[2048]; va_list a; va_start(a, fmt); vsnprintf(b, sizeof b, fmt, a); va_end(a); fprintf(stderr, "  <%d> %s\n", level, b); }
int32_t CheckLogLevelInner(int32_t, int32_t level) { return g_v > 2 || (level >= 3 && level != 16) ? 1 : 0; }
int CheckLogLevel(int, int l) { return CheckLogLevelInner(0, l); }
void DlogVaList(int, int level, const char* fmt, va_list a) { if (g_v > 1 && level == 3) { vfprintf(stderr, fmt, a); fputc('\n', stderr); } }
static void Rec(const char* n) { g_kern += n; g_kern += ' '; if (g_v) fprintf(stderr, "  kernel %s\n", n); }
aclnnStatus CreatAiCoreKernelLauncher(const char* l0, uint32_t t, aclOpExecutor* e, op::OpArgContext* args) {
  if (!args || !e) return ACLNN_ERR_PARAM_NULLPTR; Rec(op::OpTypeDict::ToString(t).GetString()); op::DestroyOpArgContext(args); return ACLNN_SUCCESS; }
void CreatDSAKernelLauncher(const char* l0, uint32_t t, DSA_TASK_TYPE, aclOpExecutor* e, op::OpArgContext* args) { Rec(op::OpTypeDict::ToString(t).GetString()); if (args) op::DestroyOpArgContext(args); }
// Published under a newer name only; arguments and attributes are the same.
static const char* shape_of(const char* n) { return !strcmp(n, "MatMulV2") ? "MatMulV3" : !strcmp(n, "BatchMatMulV2") ? "BatchMatMulV3" : n; }
aclnnStatus InferShape(uint32_t t, op::OpArgList& in, op::OpArgList& out, op::OpArgList& at) {
  using namespace op::internal; auto n = op::OpTypeDict::ToString(t);
  auto* f = gert::OpImplRegistry::GetInstance().GetOpImpl(shape_of(n.GetString()));
  if (!f || !f->infer_shape) { g_missing++; if (g_v) fprintf(stderr, "  no infershape for %s\n", n.GetString()); return ACLNN_SUCCESS; }
  auto* ctx = OpRunContextMgr::opRunCtx_.UpdateInferShapeCtx(t, in, out, at);
  if (!ctx) return ACLNN_ERR_INNER;
  if (f->infer_shape(ctx) != 0) { g_err += std::string("infershape of ") + n.GetString() + " failed\n"; return ACLNN_ERR_INNER; }
  // storage shape of private formats is left as the logical shape
  return out.VisitBy([](size_t, op::OpArg& a) -> aclnnStatus { auto up = [](aclTensor* t) { auto sh = t->GetOriginalShape(); t->SetStorageShape(sh); t->SetViewShape(sh); };
    if (a.type == op::OpArgType::OPARG_ACLTENSOR && a->pointer) up(reinterpret_cast<aclTensor*>(a->pointer));
    else if (a.type == op::OpArgType::OPARG_ACLTENSOR_LIST && a->pointer) { auto* l = reinterpret_cast<aclTensorList*>(a->pointer); for (uint64_t i = 0; i < l->Size(); ++i) if ((*l)[i]) up((*l)[i]); }
    return ACLNN_SUCCESS; }); }
namespace op { namespace internal {
void AicpuTaskSpace::SetRef(const size_t, const bool) {}
aclnnStatus CreatAicpuKernelLauncher(uint32_t t, op::internal::AicpuTaskSpace&, aclOpExecutor* e, const FVector<std::string>&, op::OpArgContext* args) {
  if (!args || !e) return ACLNN_ERR_PARAM_INVALID; Rec((std::string("aicpu:") + op::OpTypeDict::ToString(t).GetString()).c_str()); op::DestroyOpArgContext(args); return ACLNN_SUCCESS; }
} }
