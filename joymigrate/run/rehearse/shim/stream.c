/* Streams and events. Everything runs at once, except receives that wait for another process:
 * those stay in their stream until something waits for the stream or for an event in it. */
#define _GNU_SOURCE
#include "joy.h"
#include "capture.h"
#include "order.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

typedef struct pending { joy_work run; void *arg; struct pending *next; } pending;
typedef struct stream {
  int device, id;
  pthread_mutex_t lock;
  pending *head, *tail;
  uint32_t order;
  void *lane;
  struct stream *next;
} stream;
typedef struct event {
  struct timespec when;
  int recorded, polls;
  stream *in;
  uint32_t *clock;
  void *captured;
} event;

static stream default_stream = {0, 0, PTHREAD_MUTEX_INITIALIZER, NULL, NULL, 0, NULL, NULL};
static stream *streams = &default_stream;
static int last_id;

static stream *of(void *handle) { return handle ? handle : &default_stream; }

void joy_stream_push(void *handle, joy_work run, void *arg) {
  stream *s = of(handle);
  pending *item = calloc(1, sizeof *item);
  item->run = run;
  item->arg = arg;
  pthread_mutex_lock(&s->lock);
  if (s->tail) s->tail->next = item;
  else s->head = item;
  s->tail = item;
  pthread_mutex_unlock(&s->lock);
}

int joy_stream_drain(void *handle, int block) {
  stream *s = of(handle);
  if (!s->head) return 0;
  if (block) pthread_mutex_lock(&s->lock);
  else if (pthread_mutex_trylock(&s->lock)) return 1;
  int status = 0;
  while (s->head && status == 0) {
    pending *item = s->head;
    status = item->run(item->arg, block);
    if (status == 1) break;
    s->head = item->next;
    if (!s->head) s->tail = NULL;
    free(item);
  }
  pthread_mutex_unlock(&s->lock);
  return status;
}

void **joy_stream_lane(void *handle) { return &of(handle)->lane; }
uint32_t *joy_stream_order(void *handle) { return &of(handle)->order; }

void joy_streams_drain(int device, int block) {
  for (stream *s = streams; s; s = s->next)
    if (device < 0 || s->device == device) joy_stream_drain(s, block);
}

static int drained(void *handle) {
  return joy_stream_drain(handle, 1) < 0 ? ACL_REMOTE_LOST : ACL_OK;
}
static int waited(void *handle) { /* by the host */
  int status = joy_capture_refuse(handle, JOY_CAPTURED, "waiting for its stream");
  if (status) return status;
  status = drained(handle);
  joy_order_sync_stream(handle);
  return status;
}

JOY_PUBLIC int aclrtCreateStream(void **handle) {
  stream *s = calloc(1, sizeof *s);
  pthread_mutex_init(&s->lock, NULL);
  s->device = joy_device();
  s->id = __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED);
  s->next = __atomic_load_n(&streams, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(&streams, &s->next, s, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
    ;
  *handle = s;
  return ACL_OK;
}
JOY_PUBLIC int aclrtCreateStreamWithConfig(void **handle, uint32_t priority, uint32_t flags) {
  (void)priority; (void)flags;
  return aclrtCreateStream(handle);
}
/* Never freed: an event may still point to its stream. A program makes a few dozen of them. */
JOY_PUBLIC int aclrtDestroyStream(void *handle) { return drained(handle); }
JOY_PUBLIC int aclrtDestroyStreamForce(void *handle) { (void)handle; return ACL_OK; }
JOY_PUBLIC int aclrtStreamGetId(void *handle, int32_t *id) { *id = of(handle)->id; return ACL_OK; }
JOY_PUBLIC int aclrtSynchronizeStream(void *handle) { return waited(handle); }
JOY_PUBLIC int aclrtSynchronizeStreamWithTimeout(void *handle, int32_t ms) {
  (void)ms;
  return waited(handle);
}
JOY_PUBLIC int aclrtSynchronizeDevice(void) {
  int status = joy_capture_refuse_thread(JOY_CAPTURED, "waiting for the device");
  if (status) return status;
  if (!joy_order_on()) return ACL_OK;
  joy_streams_drain(joy_device(), 1);
  for (stream *s = streams; s; s = s->next)
    if (s->device == joy_device() && s->order) joy_order_sync_stream(s);
  return ACL_OK;
}
JOY_PUBLIC int aclrtSynchronizeDeviceWithTimeout(int32_t ms) {
  (void)ms;
  return aclrtSynchronizeDevice();
}
JOY_PUBLIC int aclrtStreamQuery(void *handle, int *status) {
  int refused = joy_capture_refuse(handle, JOY_CAPTURED, "asking for its stream's state");
  if (refused) return refused;
  int left = joy_stream_drain(handle, 0);
  *status = left == 1 ? 1 : 0; /* ACL_STREAM_STATUS_COMPLETE 0, NOT_READY 1 */
  if (!*status) joy_order_sync_stream(handle);
  return left < 0 ? ACL_REMOTE_LOST : ACL_OK;
}
JOY_PUBLIC int aclrtSetStreamFailureMode(void *handle, uint64_t mode) {
  (void)handle; (void)mode;
  return ACL_OK;
}
JOY_PUBLIC int aclrtSetStreamOverflowSwitch(void *handle, uint32_t flag) {
  (void)handle; (void)flag;
  return ACL_OK;
}

JOY_PUBLIC int aclrtCreateEvent(void **handle) {
  *handle = calloc(1, sizeof(event));
  return *handle ? ACL_OK : ACL_NO_MEMORY;
}
JOY_PUBLIC int aclrtCreateEventWithFlag(void **handle, uint32_t flag) {
  (void)flag;
  return aclrtCreateEvent(handle);
}
JOY_PUBLIC int aclrtCreateEventExWithFlag(void **handle, uint32_t flag) {
  (void)flag;
  return aclrtCreateEvent(handle);
}
JOY_PUBLIC int aclrtDestroyEvent(void *handle) {
  if (handle) free(((event *)handle)->clock);
  if (handle) free(((event *)handle)->captured);
  free(handle);
  return ACL_OK;
}
JOY_PUBLIC int aclrtRecordEvent(void *handle, void *in) {
  event *e = handle;
  e->in = of(in);
  e->recorded = 1;
  joy_capture_record(&e->captured, in);
  joy_order_record(&e->clock, &e->polls, e->in);
  clock_gettime(CLOCK_MONOTONIC, &e->when);
  return ACL_OK;
}
JOY_PUBLIC int aclrtResetEvent(void *handle, void *in) { (void)handle; (void)in; return ACL_OK; }
JOY_PUBLIC int aclrtSynchronizeEvent(void *handle) {
  event *e = handle;
  if (e->captured && joy_capturing(e->in))
    return joy_capture_refuse(e->in, JOY_EVENT_CAPTURED, "waiting for an event of the capture");
  int status = e->recorded ? drained(e->in) : ACL_OK;
  joy_order_sync_event(e->clock);
  return status;
}
JOY_PUBLIC int aclrtStreamWaitEvent(void *waiting, void *handle) {
  event *e = handle;
  int status = e->recorded ? drained(e->in) : ACL_OK;
  joy_capture_wait(waiting, e->captured);
  joy_order_wait(waiting, e->clock);
  return status;
}
JOY_PUBLIC int aclrtQueryEventStatus(void *handle, int *status) {
  event *e = handle;
  if (!joy_order_query(e->clock, &e->polls)) {
    *status = 0;
    return ACL_OK;
  }
  int left = e->recorded ? joy_stream_drain(e->in, 0) : 0;
  *status = left == 1 ? 0 : 1; /* ACL_EVENT_RECORDED_STATUS_COMPLETE 1 */
  return left < 0 ? ACL_REMOTE_LOST : ACL_OK;
}
JOY_PUBLIC int aclrtQueryEventWaitStatus(void *handle, int *status) {
  int result = aclrtQueryEventStatus(handle, status);
  *status = *status ? 0 : 1; /* ACL_EVENT_WAIT_STATUS_COMPLETE 0, NOT_READY 1 */
  return result;
}
JOY_PUBLIC int aclrtEventElapsedTime(float *ms, void *from, void *to) {
  event *a = from, *b = to;
  *ms = (float)((b->when.tv_sec - a->when.tv_sec) * 1e3 +
                (b->when.tv_nsec - a->when.tv_nsec) * 1e-6);
  return ACL_OK;
}
