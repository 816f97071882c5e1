/* Devices, contexts, memory and copies: host memory with the accounting of a chip. */
#define _GNU_SOURCE
#include "joy.h"
#include "capture.h"
#include "order.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef __GLIBC__ /* known once a header of the C library was read */
#include <malloc.h>
#endif

static int device_count = 8;
static uint64_t device_bytes = 64ull << 30;
static char soc_name[64] = "Ascend910B3";
static __thread int current = -1;
static __thread char message[1024];

/* Results are computed in host memory that comes and goes with every operator, in autograd's
 * threads too: keep it instead of handing pages back and faulting them in again. */
static void keep_host_memory(void) {
#ifdef __GLIBC__
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
}

/* Called before torch_npu is loaded, and by who asks the runtime earlier. A process may see none. */
JOY_PUBLIC void joy_configure(const char *soc, int devices, uint64_t bytes) {
  keep_host_memory();
  snprintf(soc_name, sizeof soc_name, "%s", soc);
  device_count = devices < 0 ? 0 : devices > JOY_MAX_DEVICES ? JOY_MAX_DEVICES : devices;
  device_bytes = bytes;
}

int joy_trace(void) {
  static int level = -1;
  if (level < 0) {
    const char *text = getenv("JOYMIGRATE_SHIM_TRACE");
    level = text ? atoi(text) : 0;
  }
  return level;
}

#define TRACE(...) \
  do { if (joy_trace()) { fprintf(stderr, "[rehearsal] " __VA_ARGS__); fputc('\n', stderr); } } while (0)

void joy_fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
}

JOY_PUBLIC const char *aclGetRecentErrMsg(void) { return message; }

JOY_PUBLIC int aclInit(const char *config) { (void)config; return ACL_OK; }
JOY_PUBLIC int aclFinalize(void) { return ACL_OK; }
JOY_PUBLIC const char *aclrtGetSocName(void) { return soc_name; }

JOY_PUBLIC void aclAppLog(int level, const char *function, const char *file, uint32_t line,
                          const char *format, ...) {
  if (joy_trace() < 2) return;
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "[rehearsal log %d %s %s:%u] ", level, function, file, line);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
}

/* ---- devices: a thread has none until it sets one, as on the chip */
JOY_PUBLIC int aclrtGetDeviceCount(uint32_t *count) { *count = device_count; return ACL_OK; }

JOY_PUBLIC int aclrtSetDevice(int32_t device) {
  TRACE("set device %d", device);
  if (device < 0 || device >= device_count) {
    joy_fail("rehearsal device: there is no device %d; this rehearsal has %d (--devices)", device,
             device_count);
    return ACL_BAD_DEVICE;
  }
  current = device;
  return ACL_OK;
}

JOY_PUBLIC int aclrtGetDevice(int32_t *device) {
  if (current < 0) return ACL_NO_CONTEXT;
  *device = current;
  return ACL_OK;
}

JOY_PUBLIC int aclrtResetDevice(int32_t device) { (void)device; return ACL_OK; }

int joy_device(void) { return current < 0 ? 0 : current; }

/* A context is a pointer that encodes its device. */
static char contexts[JOY_MAX_DEVICES];

JOY_PUBLIC int aclrtGetCurrentContext(void **context) {
  if (current < 0) return ACL_NO_CONTEXT;
  *context = &contexts[current];
  return ACL_OK;
}

JOY_PUBLIC int aclrtSetCurrentContext(void *context) {
  long device = (char *)context - contexts;
  if (device < 0 || device >= device_count) return ACL_NO_CONTEXT;
  current = (int)device;
  return ACL_OK;
}

JOY_PUBLIC int aclrtGetPrimaryCtxState(int32_t device, uint32_t *flags, int32_t *active) {
  if (flags) *flags = 0;
  *active = device == current;
  return ACL_OK;
}

JOY_PUBLIC int aclrtDeviceCanAccessPeer(int32_t *can, int32_t a, int32_t b) {
  (void)a; (void)b;
  *can = 1;
  return ACL_OK;
}
JOY_PUBLIC int aclrtDeviceEnablePeerAccess(int32_t a, uint32_t flags) {
  (void)a; (void)flags;
  return ACL_OK;
}
JOY_PUBLIC int aclrtDeviceGetBareTgid(int32_t *pid) { *pid = getpid(); return ACL_OK; }

/* ---- memory: a table of blocks, so that a limit can be kept and a wrong free is seen */
typedef struct block {
  void *start;
  size_t bytes, mapped;
  int device, shared; /* a file that other processes may map, 0 without one */
  struct block *next;
} block;
#define BUCKETS 4096
#define MAP_FROM (1u << 20) /* larger blocks are mapped: pages cost nothing until touched */
static block *blocks[BUCKETS];
static uint64_t used[JOY_MAX_DEVICES], peak[JOY_MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static unsigned bucket(const void *pointer) { return ((uintptr_t)pointer >> 9) % BUCKETS; }

static void *reserve(size_t bytes, size_t *mapped) {
  void *start = NULL;
  *mapped = 0;
  if (bytes < MAP_FROM) return posix_memalign(&start, 512, bytes ? bytes : 512) ? NULL : start;
  start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
               -1, 0);
  if (start == MAP_FAILED) return NULL;
  *mapped = bytes;
  return start;
}

JOY_PUBLIC int aclrtMalloc(void **pointer, size_t bytes, int policy) {
  (void)policy;
  int device = joy_device();
  *pointer = NULL;
  pthread_mutex_lock(&lock);
  int fits = used[device] + bytes <= device_bytes;
  if (fits) {
    used[device] += bytes;
    if (used[device] > peak[device]) peak[device] = used[device];
  }
  pthread_mutex_unlock(&lock);
  TRACE("malloc %zu on %d: %s", bytes, device, fits ? "ok" : "out of memory");
  if (!fits) return ACL_NO_MEMORY;
  size_t mapped;
  void *start = reserve(bytes, &mapped);
  block *entry = start ? malloc(sizeof *entry) : NULL;
  pthread_mutex_lock(&lock);
  if (!entry) {
    used[device] -= bytes;
  } else {
    *entry = (block){start, bytes, mapped, device, 0, blocks[bucket(start)]};
    blocks[bucket(start)] = entry;
    *pointer = start;
  }
  pthread_mutex_unlock(&lock);
  return entry ? ACL_OK : ACL_NO_MEMORY;
}

JOY_PUBLIC int aclrtMallocAlign32(void **pointer, size_t bytes, int policy) {
  return aclrtMalloc(pointer, bytes, policy);
}

JOY_PUBLIC int aclrtFree(void *pointer) {
  if (!pointer) return ACL_OK;
  if (joy_order_on()) joy_streams_drain(-1, 0); /* copies that wait may still write there */
  pthread_mutex_lock(&lock);
  block **link = &blocks[bucket(pointer)];
  while (*link && (*link)->start != pointer) link = &(*link)->next;
  block *found = *link;
  if (found) {
    *link = found->next;
    used[found->device] -= found->bytes;
  }
  pthread_mutex_unlock(&lock);
  if (!found) {
    joy_fail("rehearsal device: free of %p, which is not a block of the device", pointer);
    return ACL_INVALID_PARAM;
  }
  if (found->mapped) munmap(pointer, found->mapped);
  else free(pointer);
  if (found->shared) close(found->shared);
  free(found);
  return ACL_OK;
}

/* ---- memory of one process in another: a block becomes a file without a name, which the other
 * process finds among the first one's open files. A key says whose it is and which. */
typedef struct import { void *start; size_t bytes; char key[65]; struct import *next; } import;
static import *imports;

static int share(block *it) {
  if (it->shared) return 1;
  if (!it->mapped) return 0; /* smaller than anything that torch_npu asks for */
  int file = memfd_create("rehearsal", MFD_CLOEXEC);
  if (file < 0) return 0;
  size_t done = 0;
  while (done < it->bytes) {
    ssize_t wrote = write(file, (char *)it->start + done, it->bytes - done);
    if (wrote <= 0) break;
    done += (size_t)wrote;
  }
  void *there = MAP_FAILED;
  if (done == it->bytes)
    there = mmap(it->start, it->mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
  if (there == MAP_FAILED) {
    close(file);
    return 0;
  }
  it->shared = file;
  return 1;
}

JOY_PUBLIC int aclrtIpcMemGetExportKey(void *pointer, size_t bytes, char *key, size_t room,
                                       uint64_t flags) {
  (void)bytes; (void)flags;
  pthread_mutex_lock(&lock);
  block *it = blocks[bucket(pointer)];
  while (it && it->start != pointer) it = it->next;
  int shared = it && share(it);
  if (shared) snprintf(key, room, "%d %d %zu", getpid(), it->shared, it->bytes);
  pthread_mutex_unlock(&lock);
  if (!shared) joy_fail("rehearsal device: %p can't be shared with other processes", pointer);
  return shared ? ACL_OK : ACL_INVALID_PARAM;
}

JOY_PUBLIC int aclrtIpcMemSetImportPid(const char *key, int32_t *pids, size_t count) {
  (void)key; (void)pids; (void)count;
  return ACL_OK;
}

JOY_PUBLIC int aclrtIpcMemImportByKey(void **pointer, const char *key, uint64_t flags) {
  (void)flags;
  int process, number;
  size_t bytes;
  char path[64];
  import *it = calloc(1, sizeof *it);
  if (it && sscanf(key, "%d %d %zu", &process, &number, &bytes) == 3) {
    snprintf(path, sizeof path, "/proc/%d/fd/%d", process, number);
    int file = open(path, O_RDWR | O_CLOEXEC);
    void *start = MAP_FAILED;
    if (file >= 0) {
      start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
      close(file);
    }
    if (start != MAP_FAILED) {
      it->start = start;
      it->bytes = bytes;
      snprintf(it->key, sizeof it->key, "%s", key);
      pthread_mutex_lock(&lock);
      it->next = imports;
      imports = it;
      pthread_mutex_unlock(&lock);
      *pointer = start;
      return ACL_OK;
    }
  }
  free(it);
  joy_fail("rehearsal device: the process that shared this memory has ended, or is another's");
  return ACL_INVALID_PARAM;
}

JOY_PUBLIC int aclrtIpcMemClose(const char *key) {
  pthread_mutex_lock(&lock);
  import **link = &imports;
  while (*link && strcmp((*link)->key, key)) link = &(*link)->next;
  import *found = *link;
  if (found) *link = found->next;
  pthread_mutex_unlock(&lock);
  if (found) munmap(found->start, found->bytes);
  free(found);
  return ACL_OK;
}

JOY_PUBLIC int aclrtMallocHost(void **pointer, size_t bytes) {
  *pointer = joy_order_host_block(bytes);
  if (*pointer) return ACL_OK;
  return posix_memalign(pointer, 64, bytes ? bytes : 64) ? ACL_NO_MEMORY : ACL_OK;
}
JOY_PUBLIC int aclrtFreeHost(void *pointer) {
  if (!joy_order_host_free(pointer)) free(pointer);
  return ACL_OK;
}

JOY_PUBLIC int aclrtGetMemInfo(int kind, size_t *free_bytes, size_t *total_bytes) {
  (void)kind;
  *total_bytes = device_bytes;
  *free_bytes = device_bytes - used[joy_device()];
  return ACL_OK;
}

/* Bytes that the program holds on `device`, and the most it ever held. */
JOY_PUBLIC void joy_memory(int device, uint64_t *now, uint64_t *most) {
  *now = used[device];
  *most = peak[device];
}

/* ---- copies and fills happen at once, after what waits in the stream */
JOY_PUBLIC int aclrtMemcpy(void *to, size_t room, const void *from, size_t bytes, int kind) {
  (void)room; (void)kind;
  int refused = joy_capture_refuse_thread(JOY_MODE_REFUSES, "a synchronous copy");
  if (refused) return refused;
  joy_order_host_copy(to, from, bytes);
  memmove(to, from, bytes);
  return ACL_OK;
}

typedef struct { void *to; const void *from; size_t bytes; int value; } moved;
static int move_again(void *arg) {
  moved *m = arg;
  if (m->from) memmove(m->to, m->from, m->bytes);
  else memset(m->to, m->value, m->bytes);
  return ACL_OK;
}
static void keep_move(moved m, void *stream) {
  if (joy_tracing() || !joy_capturing(stream)) return;
  joy_capture_save(m.to, m.bytes);
  joy_capture_work(stream, move_again, &m, sizeof m);
}

JOY_PUBLIC int aclrtMemcpyAsync(void *to, size_t room, const void *from, size_t bytes, int kind,
                                void *stream) {
  (void)room;
  if (joy_stream_drain(stream, 1) < 0) return ACL_REMOTE_LOST;
  keep_move((moved){to, from, bytes, 0}, stream);
  if (!joy_order_copy(to, from, bytes, kind, stream)) memmove(to, from, bytes);
  return ACL_OK;
}

JOY_PUBLIC int aclrtMemset(void *to, size_t room, int32_t value, size_t bytes) {
  (void)room;
  memset(to, value, bytes);
  return ACL_OK;
}

JOY_PUBLIC int aclrtMemsetAsync(void *to, size_t room, int32_t value, size_t bytes, void *stream) {
  keep_move((moved){to, NULL, bytes, value}, stream);
  if (joy_order_on()) {
    joy_stream_drain(stream, 1);
    joy_order_work(stream, "aclrtMemsetAsync", NULL, 0, to, bytes);
  }
  return aclrtMemset(to, room, value, bytes);
}
