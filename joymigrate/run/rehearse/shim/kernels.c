/* Chip kernels (aclnn*): every one is counted; the few that torch_npu reaches below the
 * dispatcher (fill, copy, cast, pad, format cast) are computed; any other answers "not simulated" unless the
 * caller only wants to know which kernels would run. */
#define _GNU_SOURCE
#include "joy.h"
#include "capture.h"
#include "order.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what was asked for */
#define SEQUENCE (1u << 20)
static const char *const *kernel_names;
static int kernel_count;
static uint64_t *counts;
static uint16_t sequence[SEQUENCE];
static uint64_t asked;
static int dry;              /* no kernel computes, all succeed */
static __thread int tracing; /* this thread runs the vendor's C++ only to see what it does */

void joy_kernel_table(const char *const *names, int count) {
  kernel_names = names;
  kernel_count = count;
  counts = calloc((size_t)count, sizeof *counts);
}
JOY_PUBLIC void joy_set_dry(int on) { dry = on; }
static void forget_forms(void);
JOY_PUBLIC void joy_set_tracing(int on) { /* nests */
  if (on && !tracing) forget_forms();
  tracing += on ? 1 : -1;
}
int joy_tracing(void) { return tracing; }
JOY_PUBLIC int joy_kernel_total(void) { return kernel_count; }
JOY_PUBLIC const char *joy_kernel_name(int number) { return kernel_names[number]; }
JOY_PUBLIC const uint64_t *joy_kernel_counts(void) { return counts; }
JOY_PUBLIC const uint16_t *joy_kernel_sequence(uint64_t *length) { *length = asked; return sequence; }

static void note(int number) {
  __atomic_add_fetch(&counts[number], 1, __ATOMIC_RELAXED);
  uint64_t at = __atomic_fetch_add(&asked, 1, __ATOMIC_RELAXED);
  if (at < SEQUENCE) sequence[at] = (uint16_t)number;
  if (joy_trace()) fprintf(stderr, "[rehearsal] %s\n", kernel_names[number]);
}

static joy_function computed(int number);
static void note_form(int number, const joy_frame *frame);

/* Every `aclnn…GetWorkspaceSize` comes here with the arguments it was called with. */
int joy_kernel(int number, const joy_frame *frame) {
  if (tracing) note_form(number, frame);
  joy_function compute = computed(number);
  if (compute) return joy_call(compute, frame);
  note(number);
  if (dry || tracing) return ACL_OK;
  joy_fail("rehearsal device: chip kernel %s has no simulation", kernel_names[number]);
  return ACLNN_NOT_SIMULATED;
}

/* Kernels of the graph interface are compiled by name, which also says what was asked for. Those
 * that only change the format move bytes: see `aclnnNpuFormatCast` below. */
typedef struct { void *data; size_t bytes; } buffer;
JOY_PUBLIC buffer *aclCreateDataBuffer(void *data, size_t bytes) {
  buffer *b = malloc(sizeof *b);
  *b = (buffer){data, bytes};
  return b;
}
JOY_PUBLIC int aclDestroyDataBuffer(buffer *b) { free(b); return ACL_OK; }

static int graph_kernel(const char *type, int inputs, buffer **from, int outputs, buffer **to) {
  if (joy_trace()) fprintf(stderr, "[rehearsal] graph kernel %s\n", type);
  if (dry || tracing) return ACL_OK;
  int moves = !strcmp(type, "Identity") || !strcmp(type, "TransData");
  if (moves && inputs == 1 && outputs == 1 && from[0] && to[0]) {
    size_t bytes = from[0]->bytes < to[0]->bytes ? from[0]->bytes : to[0]->bytes;
    if (bytes) memmove(to[0]->data, from[0]->data, bytes);
    return ACL_OK;
  }
  joy_fail("rehearsal device: graph kernel %s has no simulation", type);
  return ACLNN_NOT_SIMULATED;
}
JOY_PUBLIC int aclopCompileAndExecute(const char *type, int inputs, void **in, buffer **from,
                                      int outputs, void **out, buffer **to) {
  (void)in; (void)out;
  return graph_kernel(type, inputs, from, outputs, to);
}
JOY_PUBLIC int aclopCompileAndExecuteV2(const char *type, int inputs, void **in, buffer **from,
                                      int outputs, void **out, buffer **to) {
  (void)in; (void)out;
  return graph_kernel(type, inputs, from, outputs, to);
}

/* ---- descriptors */
#define MAX_DIMS 16
typedef struct {
  int64_t size[MAX_DIMS], stride[MAX_DIMS], offset;
  uint64_t dims;
  int type, format;
  char *data;
} aclTensor;
typedef struct { int type; char value[16]; } aclScalar;
typedef struct { uint64_t count; void *items; } list;

static int width(int type) {
  switch (type) {
    case T_I8: case T_U8: case T_BOOL: return 1;
    case T_F16: case T_I16: case T_U16: case T_BF16: return 2;
    case T_F32: case T_I32: case T_U32: case T_C32: return 4;
    case T_C128: return 16;
    case T_I64: case T_U64: case T_F64: case T_C64: return 8;
    default: return type > T_C32 ? 1 : 8; /* the 8-bit floats */
  }
}

JOY_PUBLIC aclTensor *aclCreateTensor(const int64_t *size, uint64_t dims, int type,
                                      const int64_t *stride, int64_t offset, int format,
                                      const int64_t *storage, uint64_t storage_dims, void *data) {
  aclTensor *t = calloc(1, sizeof *t);
  (void)storage; (void)storage_dims;
  joy_descriptor(t, A_TENSOR);
  t->dims = dims < MAX_DIMS ? dims : MAX_DIMS;
  t->type = type;
  t->format = format;
  t->offset = offset;
  t->data = data;
  for (uint64_t i = 0; i < t->dims; i++) {
    t->size[i] = size[i];
    t->stride[i] = stride ? stride[i] : 0;
  }
  return t;
}
JOY_PUBLIC aclScalar *aclCreateScalar(void *value, int type) {
  aclScalar *s = calloc(1, sizeof *s);
  s->type = type;
  memcpy(s->value, value, (size_t)width(type));
  joy_descriptor(s, A_SCALAR);
  return s;
}
static void *make_list(int kind, const void *items, uint64_t count, size_t each) {
  list *l = malloc(sizeof *l);
  l->count = count;
  l->items = malloc(count * each + 8);
  memcpy(l->items, items, count * each);
  joy_descriptor(l, kind);
  return l;
}
static int drop(void *item) {
  joy_descriptor_gone(item);
  free(item);
  return 0;
}
static int drop_list(list *l) {
  if (l) free(l->items);
  return drop(l);
}

#define LIST(name, of, each, kind) \
  JOY_PUBLIC void *aclCreate##name(of v, uint64_t n) { return make_list(kind, v, n, each); }
LIST(IntArray, const int64_t *, 8, INTEGERS)
LIST(FloatArray, const float *, 4, AN_ARRAY)
LIST(BoolArray, const char *, 1, AN_ARRAY)
LIST(TensorList, void *, 8, A_TENSOR_LIST)
LIST(ScalarList, void *, 8, AN_ARRAY)
JOY_PUBLIC int aclDestroyTensor(void *t) { return drop(t); }
JOY_PUBLIC int aclDestroyScalar(void *s) { return drop(s); }
JOY_PUBLIC int aclDestroyIntArray(void *l) { return drop_list(l); }
JOY_PUBLIC int aclDestroyFloatArray(void *l) { return drop_list(l); }
JOY_PUBLIC int aclDestroyBoolArray(void *l) { return drop_list(l); }
/* A list owns what it holds. */
static int drop_all(list *l) {
  for (uint64_t i = 0; l && i < l->count; i++) drop(((void **)l->items)[i]);
  return drop_list(l);
}
JOY_PUBLIC int aclDestroyTensorList(void *l) { return drop_all(l); }
JOY_PUBLIC int aclDestroyScalarList(void *l) { return drop_all(l); }
JOY_PUBLIC int aclDestroyAclOpExecutor(void *executor) { (void)executor; return 0; }
JOY_PUBLIC int aclGetViewShape(const aclTensor *t, int64_t **size, uint64_t *dims) {
  *dims = t->dims;
  *size = malloc(sizeof t->size);
  memcpy(*size, t->size, sizeof t->size);
  return 0;
}

/* ---- the forms of what was asked for: `aclnnAdd T0/2/3x4 T0/1/4 S0/1 T0/2/3x4` is a kernel with
 * its arguments in order, but for floating-point numbers: `T` types, dimensions and sizes of a tensor
 * (and its format where it is one of the chip's own), `L` the same of each tensor of a list with `;`
 * between them, `A` whole numbers, `S` type and value of a scalar, `W` any other word */
static double load(const char *at, int type);
static int is_private(int format) { /* not NCHW, NHWC, ND, NDHWC, NCDHW, NCL */
  return format > 2 && format != 27 && format != 30 && format != 47;
}
#define FORMS (1u << 18) /* an optimiser hands over hundreds of tensors at once */
static __thread char *forms;
static __thread size_t forms_used;
JOY_PUBLIC const char *joy_forms(void) { return forms ? forms : ""; }
JOY_PUBLIC size_t joy_forms_length(void) { return forms_used; }

static void forget_forms(void) {
  if (!forms) forms = malloc(FORMS);
  forms_used = 0;
  forms[0] = 0;
}

static void note_form(int number, const joy_frame *frame) {
  uint64_t words[64];
  int count = joy_words(frame, words, 64);
  size_t at = forms_used, room = FORMS;
#define ADD(...) at += at < room ? (size_t)snprintf(forms + at, room - at, __VA_ARGS__) : 0
#define ADD_TENSOR(t)                                                                            \
  do {                                                                                           \
    ADD("%d/%d/", (t)->type, (int)(t)->dims);                                                    \
    for (uint64_t n = 0; n < (t)->dims; n++) ADD(n ? "x%lld" : "%lld", (long long)(t)->size[n]); \
    if (is_private((t)->format)) ADD("/%d", (t)->format);                                        \
  } while (0)
  ADD("%s", kernel_names[number]);
  for (int i = 0; i < count; i++) {
    void *word = (void *)(uintptr_t)words[i];
    int kind = joy_descriptor_kind(word);
    if (kind == A_TENSOR) {
      ADD(" T");
      ADD_TENSOR((const aclTensor *)word);
    } else if (kind == A_SCALAR) {
      const aclScalar *s = word;
      ADD(" S%d/%g", s->type, load(s->value, s->type));
    } else if (kind == INTEGERS) {
      const list *l = word;
      ADD(" A");
      for (uint64_t n = 0; n < l->count; n++)
        ADD(n ? ",%lld" : "%lld", (long long)((const int64_t *)l->items)[n]);
    } else if (kind == A_TENSOR_LIST) {
      const list *l = word;
      ADD(" L");
      for (uint64_t i = 0; i < l->count; i++) {
        if (i) ADD(";");
        const aclTensor *t = ((aclTensor **)l->items)[i];
        if (t) ADD_TENSOR(t);
      }
    } else {
      ADD(" W%llu", (unsigned long long)words[i]);
    }
  }
  ADD("\n");
#undef ADD_TENSOR
#undef ADD
  if (count && at < room) forms_used = at;
  else forms[forms_used] = 0;
}

/* ---- the computed ones: dst[i] = src[i] (broadcast) or a scalar */
static double load(const char *at, int type) {
  switch (type) {
    case T_F32: return *(const float *)at;
    case T_F16: return joy_half_to_float(*(const uint16_t *)at);
    case T_BF16: return joy_bf16_to_float(*(const uint16_t *)at);
    case T_F64: return *(const double *)at;
    case T_I8: return *(const int8_t *)at;
    case T_I16: return *(const int16_t *)at;
    case T_I32: return *(const int32_t *)at;
    case T_I64: return (double)*(const int64_t *)at;
    case T_U8: case T_BOOL: return *(const uint8_t *)at;
    case T_U16: return *(const uint16_t *)at;
    case T_U32: return *(const uint32_t *)at;
    default: return 0;
  }
}
static void store(char *at, int type, double value) {
  switch (type) {
    case T_F32: *(float *)at = (float)value; break;
    case T_F16: *(uint16_t *)at = joy_float_to_half((float)value); break;
    case T_BF16: *(uint16_t *)at = joy_float_to_bf16((float)value); break;
    case T_F64: *(double *)at = value; break;
    case T_I8: *(int8_t *)at = (int8_t)value; break;
    case T_I16: *(int16_t *)at = (int16_t)value; break;
    case T_I32: *(int32_t *)at = (int32_t)value; break;
    case T_I64: *(int64_t *)at = (int64_t)value; break;
    case T_U8: *(uint8_t *)at = (uint8_t)value; break;
    case T_BOOL: *(uint8_t *)at = value != 0; break;
    case T_U16: *(uint16_t *)at = (uint16_t)value; break;
    case T_U32: *(uint32_t *)at = (uint32_t)value; break;
    default: break;
  }
}
static void put(char *to, int type, const char *from, int from_type) {
  if (type == from_type) memcpy(to, from, (size_t)width(type));
  else if (type == T_I64 && from_type == T_I32) *(int64_t *)to = *(const int32_t *)from;
  else store(to, type, load(from, from_type));
}

static void assign(aclTensor *to, const aclTensor *from, const aclScalar *scalar) {
  int64_t total = 1, index[MAX_DIMS] = {0};
  for (uint64_t d = 0; d < to->dims; d++) total *= to->size[d];
  for (int64_t i = 0; i < total; i++) {
    int64_t at = to->offset, source = from ? from->offset : 0;
    for (int d = 0; d < (int)to->dims; d++) {
      at += index[d] * to->stride[d];
      int other = from ? d - (int)(to->dims - from->dims) : -1;
      if (other >= 0 && from->size[other] != 1) source += index[d] * from->stride[other];
    }
    char *target = to->data + at * width(to->type);
    if (from) put(target, to->type, from->data + source * width(from->type), from->type);
    else if (scalar) put(target, to->type, scalar->value, scalar->type);
    else memset(target, 0, (size_t)width(to->type));
    for (int d = (int)to->dims - 1; d >= 0; d--) {
      if (++index[d] < to->size[d]) break;
      index[d] = 0;
    }
  }
}

/* An executor holds what its second call needs. A kernel's tensors live until that call. */
typedef struct { aclTensor *to, *from; aclScalar *scalar; } executor;

extern int joy_number_InplaceZero, joy_number_InplaceFillScalar, joy_number_InplaceCopy,
    joy_number_Cast, joy_number_ConstantPadNd, joy_number_Triu, joy_number_Tril,
    joy_number_NpuFormatCast;

static int prepare(int number, aclTensor *to, aclTensor *from, aclScalar *scalar, uint64_t *space,
                   executor **out) {
  note(number);
  executor *e = malloc(sizeof *e);
  *e = (executor){to, from, scalar};
  *out = e;
  *space = 0;
  return ACL_OK;
}
/* From the first byte to the last where a tensor has no gaps; none where it has. */
static size_t extent(const aclTensor *t) {
  size_t last = 1, count = 1;
  for (uint64_t d = 0; d < t->dims; d++) {
    if (!t->size[d]) return 0;
    last += (size_t)((t->size[d] - 1) * t->stride[d]);
    count *= (size_t)t->size[d];
  }
  return last == count ? count * (size_t)width(t->type) : 0;
}
static void *first_of(const aclTensor *t) { return t->data + t->offset * width(t->type); }

typedef struct { aclTensor to, from; aclScalar scalar; int reads, has_scalar; } kept_assign;
static int assign_again(void *arg) {
  kept_assign *k = arg;
  assign(&k->to, k->reads ? &k->from : NULL, k->has_scalar ? &k->scalar : NULL);
  return ACL_OK;
}
/* The bytes from a tensor's first element to its last. */
static size_t span(const aclTensor *t) {
  size_t last = 1;
  for (uint64_t d = 0; d < t->dims; d++) {
    if (!t->size[d]) return 0;
    last += (size_t)((t->size[d] - 1) * t->stride[d]);
  }
  return last * (size_t)width(t->type);
}
static void keep_assign(const executor *e, void *stream) {
  kept_assign k = {.to = *e->to, .reads = e->from != NULL, .has_scalar = e->scalar != NULL};
  if (e->from) k.from = *e->from;
  if (e->scalar) k.scalar = *e->scalar;
  joy_capture_save(first_of(e->to), span(e->to));
  joy_capture_work(stream, assign_again, &k, sizeof k);
}

static int execute(executor *e, void *stream) {
  if (e && !tracing && joy_capturing(stream)) keep_assign(e, stream);
  if (e && joy_order_on()) {
    joy_stream_drain(stream, 1);
    joy_order_work(stream, "aclnnInplaceCopy", e->from ? first_of(e->from) : NULL,
                   e->from ? extent(e->from) : 0, first_of(e->to), extent(e->to));
  }
  if (e && !dry) assign(e->to, e->from, e->scalar);
  free(e);
  return ACL_OK;
}
#define RUN(name)                                                                          \
  JOY_PUBLIC int name(void *space, uint64_t bytes, executor *e, void *stream) {            \
    (void)space; (void)bytes;                                                              \
    return execute(e, stream);                                                                     \
  }

static int compute_InplaceZero(aclTensor *to, uint64_t *space, executor **out) {
  return prepare(joy_number_InplaceZero, to, NULL, NULL, space, out);
}
RUN(aclnnInplaceZero)
static int compute_InplaceFillScalar(aclTensor *to, aclScalar *value,
                                                      uint64_t *space, executor **out) {
  return prepare(joy_number_InplaceFillScalar, to, NULL, value, space, out);
}
RUN(aclnnInplaceFillScalar)
static int compute_InplaceCopy(aclTensor *to, aclTensor *from, uint64_t *space,
                                                executor **out) {
  return prepare(joy_number_InplaceCopy, to, from, NULL, space, out);
}
RUN(aclnnInplaceCopy)
static int compute_Cast(aclTensor *from, int type, aclTensor *to, uint64_t *space,
                                         executor **out) {
  (void)type;
  return prepare(joy_number_Cast, to, from, NULL, space, out);
}
RUN(aclnnCast)

/* `padding` lists (before, after) from the last dimension on; a negative one cuts off. Done in the
 * first call. */
static int compute_ConstantPadNd(aclTensor *from, list *padding, aclScalar *value,
                                                  aclTensor *to, uint64_t *space, executor **out) {
  note(joy_number_ConstantPadNd);
  *space = 0;
  *out = NULL;
  if (dry) return ACL_OK;
  assign(to, NULL, value);
  aclTensor kept = *from, window = *to;
  const int64_t *pad = padding->items;
  for (uint64_t i = 0; i < from->dims; i++) {
    uint64_t d = from->dims - 1 - i;
    int64_t before = 2 * i < padding->count ? pad[2 * i] : 0;
    int64_t after = 2 * i + 1 < padding->count ? pad[2 * i + 1] : 0;
    if (before < 0) kept.offset -= before * from->stride[d];
    else window.offset += before * to->stride[d];
    kept.size[d] += (before < 0 ? before : 0) + (after < 0 ? after : 0);
    if (kept.size[d] <= 0) return ACL_OK; /* nothing of it is left */
    window.size[d] = kept.size[d];
  }
  assign(&window, &kept, NULL);
  return ACL_OK;
}
RUN(aclnnConstantPadNd)

/* Up to 2.5 the package makes attention's causal mask with these below the dispatcher. Done in the
 * first call. */
static int triangle(int number, int upper, aclTensor *from, int64_t diagonal, aclTensor *to,
                    uint64_t *space, executor **out) {
  note(number);
  *space = 0;
  *out = NULL;
  if (dry) return ACL_OK;
  assign(to, from, NULL);
  if (to->dims < 2) return ACL_OK;
  int64_t total = 1, index[MAX_DIMS] = {0};
  for (uint64_t d = 0; d < to->dims; d++) total *= to->size[d];
  for (int64_t i = 0; i < total; i++) {
    int64_t at = to->offset, apart = index[to->dims - 1] - index[to->dims - 2] - diagonal;
    for (uint64_t d = 0; d < to->dims; d++) at += index[d] * to->stride[d];
    if (upper ? apart < 0 : apart > 0)
      memset(to->data + at * width(to->type), 0, (size_t)width(to->type));
    for (int d = (int)to->dims - 1; d >= 0; d--) {
      if (++index[d] < to->size[d]) break;
      index[d] = 0;
    }
  }
  return ACL_OK;
}
static int compute_Triu(aclTensor *from, int64_t diagonal, aclTensor *to, uint64_t *space,
                        executor **out) {
  return triangle(joy_number_Triu, 1, from, diagonal, to, space, out);
}
RUN(aclnnTriu)
static int compute_Tril(aclTensor *from, int64_t diagonal, aclTensor *to, uint64_t *space,
                        executor **out) {
  return triangle(joy_number_Tril, 0, from, diagonal, to, space, out);
}
RUN(aclnnTril)

/* Private formats are names here: the bytes keep the order of the plain tensor, at the beginning of
 * a storage of the private format's size. FRACTAL_NZ cuts the last two dimensions into tiles of 16
 * rows and 32 bytes; the package asks for other formats by the older interface. */
enum { FORMAT_ND = 2, FORMAT_NZ = 29 };
JOY_PUBLIC int aclnnNpuFormatCastCalculateSizeAndFormat(const aclTensor *from, int format,
                                                        int tile_type, int64_t **shape,
                                                        uint64_t *dims, int *actual) {
  uint64_t n = from->dims;
  if ((format != FORMAT_NZ && format != FORMAT_ND) || (format == FORMAT_NZ && n < 2)) return 1;
  int64_t *made = malloc((n + 2) * sizeof *made);
  memcpy(made, from->size, n * sizeof *made);
  if (format == FORMAT_NZ) {
    int64_t rows = from->size[n - 2], columns = from->size[n - 1];
    int64_t lane = 32 / width(tile_type) > 0 ? 32 / width(tile_type) : 1;
    made[n - 2] = (columns + lane - 1) / lane;
    made[n - 1] = (rows + 15) / 16;
    made[n] = 16;
    made[n + 1] = lane;
    n += 2;
  }
  *shape = made;
  *dims = n;
  *actual = format;
  return ACL_OK;
}
static int compute_NpuFormatCast(aclTensor *from, aclTensor *to, uint64_t *space, executor **out) {
  return prepare(joy_number_NpuFormatCast, to, from, NULL, space, out);
}
RUN(aclnnNpuFormatCast)

static joy_function computed(int number) {
  const struct { int number; joy_function compute; } all[] = {
      {joy_number_InplaceZero, (joy_function)compute_InplaceZero},
      {joy_number_InplaceFillScalar, (joy_function)compute_InplaceFillScalar},
      {joy_number_InplaceCopy, (joy_function)compute_InplaceCopy},
      {joy_number_Cast, (joy_function)compute_Cast},
      {joy_number_ConstantPadNd, (joy_function)compute_ConstantPadNd},
      {joy_number_Triu, (joy_function)compute_Triu},
      {joy_number_Tril, (joy_function)compute_Tril},
      {joy_number_NpuFormatCast, (joy_function)compute_NpuFormatCast},
  };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (all[i].number == number) return all[i].compute;
  return NULL;
}
