/* A library of host checks in miniature, of our own: it answers as the vendor's does. One kernel for
 * each way to answer. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct { uint64_t dims; int type; } tensor;
static __thread char error[256], kernels[256];
static char model[16];
static tensor made[4096];
static int used;

const char *joy_host_error(void) { return error; }
const char *joy_host_kernels(void) { return kernels; }
int joy_host_shapes_missing(void) { return 0; }
void joy_host_clear(void) { error[0] = kernels[0] = 0; }
void joy_host_model(const char *name) { snprintf(model, sizeof model, "%s", name); }

tensor *aclCreateTensor(const int64_t *size, uint64_t dims, int type) {
  tensor *t = &made[used++ % 4096];
  *t = (tensor){dims, type};
  return t;
}
int aclDestroyTensor(tensor *t) { return 0; }
void *aclCreateScalar(void *value, int type) { return aclCreateTensor(0, 0, type); }
int aclDestroyScalar(void *s) { return 0; }

static int refuse(const char *text) {
  snprintf(error, sizeof error, "EZ1001: %s", text);
  return 161002;
}
static void launch(const char *name) { strcat(strcat(kernels, name), " "); }

/* a refusal of a parameter, by type and by model */
int aclnnExpm1GetWorkspaceSize(const tensor *self, tensor *out, uint64_t *size, void **executor) {
  if (self->type == 6) return refuse("Tensor self not implemented for DT_INT16");
  if (self->type == 27 && strcmp(model, "910B")) return refuse("no DT_BFLOAT16 on this model");
  launch("Cast");
  launch("Expm1");
  return 0;
}
/* further arguments are on the stack of a call with many of them */
int aclnnAddGetWorkspaceSize(const tensor *self, const tensor *other, void *alpha, tensor *out,
                             uint64_t *size, void **executor) {
  if (self->dims > 8) return refuse("cannot be larger than 8 dimensions");
  launch("aicpu:Add");
  return 0;
}
/* lists arrive as theirs, with their tensors in them */
typedef struct { uint64_t count; tensor *items[8]; } list;
list *aclCreateTensorList(tensor *const *items, uint64_t count) {
  static list lists[64];
  static int next;
  list *l = &lists[next++ % 64];
  l->count = count;
  for (uint64_t i = 0; i < count && i < 8; i++) l->items[i] = items[i];
  return l;
}
int aclDestroyTensorList(list *l) { return 0; }
int aclnnIndexGetWorkspaceSize(const tensor *self, const list *indices, tensor *out) {
  if (indices->items[0]->type == 9 && self->type == 16) return refuse("no DT_COMPLEX64 to index");
  return 0;
}
/* the rehearsal's own masks and positions have another type than the chip's */
int aclnnDropoutDoMaskGetWorkspaceSize(const tensor *self) { return refuse("mask is no DT_UINT8"); }
int aclnnMaxPool2dWithMaskBackwardGetWorkspaceSize(const tensor *self) {
  return refuse("indices are no DT_INT8");
}
/* what decides nothing: an inner error, a refusal after a kernel, a crash */
int aclnnTanGetWorkspaceSize(const tensor *self, tensor *out) { return 561103; }
int aclnnSinhGetWorkspaceSize(const tensor *self, tensor *out) {
  launch("Cast");
  return refuse("too late");
}
int aclnnCoshGetWorkspaceSize(const tensor *self, tensor *out) { return *(volatile int *)8; }
/* in the full form: a list of dtypes, by model; a limit of dimensions; a crash for one dtype */
static int listed(const tensor *t, const char *name) {
  int old = strcmp(model, "910B");
  if (t->type == 0 || t->type == 11 || (t->type == 27 && !old)) return 0;
  char text[200];
  snprintf(text, sizeof text, "Tensor %s not implemented for %s, should be in dtype support list [%s].",
           name, t->type == 27 ? "DT_BFLOAT16" : t->type == 1 ? "DT_FLOAT16" : t->type == 3 ?
           "DT_INT32" : "DT_INT8", old ? "DT_FLOAT,DT_DOUBLE," : "DT_FLOAT,DT_DOUBLE,DT_BFLOAT16,");
  return refuse(text);
}
int aclnnTruncGetWorkspaceSize(const tensor *self, const tensor *weight, tensor *out, uint64_t *size,
                               void **executor) {
  if (!self || !out) return 161001;
  int status = listed(self, "self");
  if (!status && weight && weight->type != 0) status = refuse("Tensor weight expected dtype is DT_FLOAT but found something");
  if (!status) status = listed(out, "out");
  if (status) return status;
  if (self->type == 11) return *(volatile int *)8;
  if (self->dims > 8) return refuse("self dim cannot be larger than 8 dimensions");
  launch("Trunc");
  return 0;
}
