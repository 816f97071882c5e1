/* What the files of the simulated runtime share. Written from function names and argument lists
 * alone: the published headers' prototypes, none of the vendor's code.
 *
 * The "device" is host memory, streams run at once, and chip kernels are counted instead of run. */
#ifndef JOY_H
#define JOY_H

#include <stddef.h>
#include <stdint.h>

/* ACL return codes that torch_npu looks at. */
enum {
  ACL_OK = 0,
  ACL_INVALID_PARAM = 100000,
  ACL_BAD_DEVICE = 107001,
  ACL_NO_CONTEXT = 107002,
  ACL_NO_MEMORY = 207001,
  ACL_NOT_SUPPORTED = 207000,
  ACL_REMOTE_LOST = 507018,
  ACLNN_NOT_SIMULATED = 561000,
};

/* ACL data types (aclDataType). */
enum {
  T_F32 = 0, T_F16 = 1, T_I8 = 2, T_I32 = 3, T_U8 = 4, T_I16 = 6, T_U16 = 7, T_U32 = 8,
  T_I64 = 9, T_U64 = 10, T_F64 = 11, T_BOOL = 12, T_C64 = 16, T_C128 = 17, T_BF16 = 27,
  T_C32 = 33,
};

#define JOY_MAX_DEVICES 64
#define JOY_PUBLIC __attribute__((visibility("default")))

/* The message that aclGetRecentErrMsg hands out in this thread. */
void joy_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
int joy_trace(void);
int joy_device(void);          /* current device of this thread, 0 before it was set */
struct joy_frame;
int joy_kernel(int number, const struct joy_frame *frame); /* asked for; see kernels.c */
void joy_kernel_table(const char *const *names, int count);

/* Work that waits in a stream: `run(arg, block)` gives 0 when done, 1 when not yet (only with
 * block 0), or a negative error. Freed by the stream once done. */
typedef int (*joy_work)(void *arg, int block);
void joy_stream_push(void *stream, joy_work run, void *arg);
int joy_stream_drain(void *stream, int block); /* 0 done, 1 pending, <0 error */

/* Arguments as they came, and the descriptors among them (descriptors.c). */
typedef struct joy_frame {
  uint64_t whole[8];      /* integer registers; x86-64 uses six of them */
  double real[8];         /* floating-point registers */
  const uint64_t *stack;  /* further arguments */
} joy_frame;
typedef int (*joy_function)(void);
int joy_call(joy_function function, const joy_frame *frame); /* with the frame's arguments */
enum { A_TENSOR = 'T', A_SCALAR = 'S', A_TENSOR_LIST = 'L', AN_ARRAY = 'B', INTEGERS = 'A' };
void joy_descriptor(void *at, int kind);
int joy_descriptor_kind(void *at); /* 0 for what is no descriptor */
void joy_descriptor_gone(void *at);
int joy_words(const joy_frame *frame, uint64_t *words, int most); /* those of the arguments */

float joy_half_to_float(uint16_t half);
uint16_t joy_float_to_half(float value);
float joy_bf16_to_float(uint16_t brain);
uint16_t joy_float_to_bf16(float value);

#endif
