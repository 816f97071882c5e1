/* Switches that torch_npu sets and asks for: compile options, system parameters, capabilities. */
#define _GNU_SOURCE
#include "joy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OP_JIT_COMPILE = 10, ALLOW_HF32 = 14 };

static char compile[64][64];

JOY_PUBLIC int aclSetCompileopt(int option, const char *value) {
  if (option < 0 || option >= 64) return ACL_INVALID_PARAM;
  snprintf(compile[option], sizeof compile[option], "%s", value ? value : "");
  return ACL_OK;
}
JOY_PUBLIC size_t aclGetCompileoptSize(int option) { (void)option; return sizeof compile[0]; }

/* Kernels are ready made ("disable" just-in-time compilation), as is the default of 910B and
 * later; otherwise modules would be moved to private formats on `.npu()`. */
JOY_PUBLIC int aclGetCompileopt(int option, char *value, size_t room) {
  if (option < 0 || option >= 64) return ACL_INVALID_PARAM;
  const char *text = compile[option];
  if (!*text && option == OP_JIT_COMPILE) text = "disable";
  snprintf(value, room, "%s", text);
  return ACL_OK;
}

/* Two digits, convolution then matmul; empty until the program sets one of them. */
JOY_PUBLIC const char *joy_hf32(void) { return compile[ALLOW_HF32]; }

static int64_t system_parameter[64];
JOY_PUBLIC int aclrtGetSysParamOpt(int option, int64_t *value) {
  *value = system_parameter[option & 63];
  return ACL_OK;
}
JOY_PUBLIC int aclrtSetSysParamOpt(int option, int64_t value) {
  system_parameter[option & 63] = value;
  return ACL_OK;
}
JOY_PUBLIC int aclrtCtxSetSysParamOpt(int option, int64_t value) {
  return aclrtSetSysParamOpt(option, value);
}
JOY_PUBLIC int aclrtCtxGetSysParamOpt(int option, int64_t *value) {
  return aclrtGetSysParamOpt(option, value);
}

JOY_PUBLIC int aclrtSetDeviceSatMode(int mode) { (void)mode; return ACL_OK; }
JOY_PUBLIC int aclrtSetOpExecuteTimeOut(uint32_t seconds) { (void)seconds; return ACL_OK; }
JOY_PUBLIC int aclrtSetOpWaitTimeout(uint32_t seconds) { (void)seconds; return ACL_OK; }

/* Core counts, which only decide how the real chip would cut its work. */
enum { AI_CORE_COUNT = 101, CUBE_CORE_COUNT, VECTOR_CORE_COUNT = 201, TOTAL_MEMORY = 301 };
int aclrtGetMemInfo(int kind, size_t *free_bytes, size_t *total_bytes);
enum { CUBE_CORES = 20, VECTOR_CORES = 40 };
JOY_PUBLIC int aclGetDeviceCapability(uint32_t device, int what, int64_t *value) {
  (void)device;
  *value = what == 1 ? VECTOR_CORES : CUBE_CORES;
  return ACL_OK;
}
JOY_PUBLIC int aclrtGetDeviceInfo(uint32_t device, int what, int64_t *value) {
  (void)device;
  size_t unused, total;
  aclrtGetMemInfo(0, &unused, &total);
  *value = what == VECTOR_CORE_COUNT ? VECTOR_CORES
           : what == TOTAL_MEMORY    ? (int64_t)total
           : what == AI_CORE_COUNT || what == CUBE_CORE_COUNT ? CUBE_CORES
                                                              : 0; /* not recorded */
  return ACL_OK;
}

/* The profiler may be configured; there is nothing to measure. */
JOY_PUBLIC int aclprofInit(const char *path, size_t length) { (void)path; (void)length; return 0; }
JOY_PUBLIC int aclprofFinalize(void) { return 0; }
JOY_PUBLIC void *aclprofCreateConfig(void) { return calloc(1, 8); }
JOY_PUBLIC int aclprofDestroyConfig(void *config) { free(config); return 0; }
JOY_PUBLIC int aclprofStart(void *config) { (void)config; return 0; }
JOY_PUBLIC int aclprofStop(void *config) { (void)config; return 0; }
JOY_PUBLIC int aclprofWarmup(void *config) { (void)config; return 0; }
JOY_PUBLIC int aclprofRegisterDeviceCallback(void) { return 0; }
JOY_PUBLIC int aclprofMarkEx(const char *text, size_t length, void *stream) {
  (void)text; (void)length; (void)stream;
  return 0;
}
JOY_PUBLIC int aclprofSetConfig(int kind, const char *value, size_t length) {
  (void)kind; (void)value; (void)length;
  return 0;
}
JOY_PUBLIC int aclprofGetSupportedFeatures(size_t *bytes, void **data) {
  *bytes = 0;
  *data = NULL;
  return 0;
}
JOY_PUBLIC int aclprofGetSupportedFeaturesV2(size_t *bytes, void **data) {
  return aclprofGetSupportedFeatures(bytes, data);
}

/* The version of the chip's software, as the package asks for it: `8.3.RC1`, `9.2.0`. */
static char cann[128];
JOY_PUBLIC void joy_cann(const char *version) { snprintf(cann, sizeof cann, "%s", version); }

typedef struct {
  char version[128], major[64], minor[64], release[64], patch[64], reserved[128];
} cann_package;
JOY_PUBLIC int aclsysGetCANNVersion(int which, cann_package *out) {
  (void)which;
  memset(out, 0, sizeof *out);
  snprintf(out->version, sizeof out->version, "%s", cann);
  const char *at = cann;
  char *parts[] = {out->major, out->minor, out->release, out->patch};
  for (int i = 0; i < 4 && *at; i++) {
    size_t length = strcspn(at, ".");
    snprintf(parts[i], 64, "%.*s", (int)(length < 63 ? length : 63), at);
    at += length + (at[length] == '.');
  }
  return ACL_OK;
}
/* Newer releases ask for text; of any part of the software. */
JOY_PUBLIC int aclsysGetVersionStr(const char *which, char *version) {
  (void)which;
  snprintf(version, sizeof cann, "%s", cann);
  return ACL_OK;
}
