/* The order of what streams do: see order.c. All of it does nothing unless `--mode async` is on. */
#ifndef JOY_ORDER_H
#define JOY_ORDER_H

#include <stddef.h>
#include <stdint.h>

#define JOY_CLOCK 512 /* streams that are told apart; number 0 is the host */
enum { JOY_TO_DEVICE = 1, JOY_TO_HOST = 2, JOY_WORK = 3 }; /* the first two as aclrtMemcpyKind */

typedef struct {
  int32_t kind;
  uint32_t stream, sequence;
  uint64_t read, read_bytes, written, written_bytes, number; /* number: of a copy, see joy_touch */
  const char *what;
  uint32_t clock[JOY_CLOCK];
} joy_access;
/* The host touched what copy `number` uses; where the interpreter was is told in a file. */
typedef struct { uint64_t number, from, to; } joy_touch;

int joy_tracing(void);                      /* kernels.c: the vendor's C++ is only looked at */
uint32_t *joy_stream_order(void *stream);   /* stream.c: where a stream keeps its number */
void joy_streams_drain(int device, int block); /* stream.c: those of a device; -1: all */

int joy_order_on(void);
void joy_order_work(void *stream, const char *what, const void *read, size_t read_bytes,
                    const void *written, size_t written_bytes);
/* 1 where the copy will be made later, 0 where the caller is to make it now. */
int joy_order_copy(void *to, const void *from, size_t bytes, int kind, void *stream);
void joy_order_host_copy(const void *to, const void *from, size_t bytes);
void *joy_order_host_block(size_t bytes); /* pinned memory with pages of its own; NULL: not ours */
int joy_order_host_free(void *start);
void joy_order_record(uint32_t **kept, int *polls, void *stream);
void joy_order_wait(void *stream, const uint32_t *kept);
void joy_order_sync_event(const uint32_t *kept);
void joy_order_sync_stream(void *stream);
int joy_order_query(const uint32_t *kept, int *polls);

#endif
