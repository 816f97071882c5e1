/* Collectives between the processes of one machine, over memory without a name (memfd): nothing
 * is left behind however a process ends. Every rank moves its part through a slot of its own,
 * between two barriers; whoever waits watches whether the others still live. */
#define _GNU_SOURCE
#include "joy.h"
#include "capture.h"
#include "order.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
  HCCL_OK = 0, HCCL_PARAMETER = 1, HCCL_NOT_SUPPORTED = 5, HCCL_UNAVAILABLE = 7,
  HCCL_TIMEOUT = 9, HCCL_REMOTE = 21,
};
enum { SUM = 0, PROD = 1, MAX = 2, MIN = 3 };
enum {
  D_I8 = 0, D_I16 = 1, D_I32 = 2, D_F16 = 3, D_F32 = 4, D_I64 = 5, D_U64 = 6, D_U8 = 7,
  D_U16 = 8, D_U32 = 9, D_F64 = 10, D_BF16 = 11, D_I128 = 12,
};

#define MAX_RANKS 128
#define SLOT (4ull << 20)          /* bytes of one rank's part of a collective at a time */
#define MAILBOX (1ull << 46)       /* file range of one sender-receiver pair; sparse */
#define ROOT_INFO_BYTES 4108

typedef struct { _Atomic int pid; _Atomic uint64_t started; } member;
typedef struct { int type, op; uint32_t root; uint64_t count; char what[32]; } intent;
typedef struct {
  _Atomic uint32_t arrived, round;
  member members[MAX_RANKS];
  intent intents[2][MAX_RANKS]; /* what each rank is in, by the round's parity */
  _Atomic uint64_t sent[MAX_RANKS][MAX_RANKS]; /* bytes so far, from row to column */
  /* Sends of the row to the column, receives of the row from it, and those at its last send. */
  _Atomic uint32_t sends[MAX_RANKS][MAX_RANKS], receives[MAX_RANKS][MAX_RANKS];
  _Atomic uint32_t receives_then[MAX_RANKS][MAX_RANKS];
} shared;
#define HEAD ((sizeof(shared) + 4095) / 4096 * 4096)

typedef struct group {
  uint32_t ranks, rank;
  int file;
  shared *head;
  char *slots;
  char name[64];
  uint64_t received[MAX_RANKS];
  intent now;
  pid_t process;      /* that made it: a forked child sees the list of its parent */
  int device;
  uint32_t crossed;   /* sends that cross one of the peer's: each stands before its receive */
  uint32_t buffer;    /* MiB of each of its two buffers; 0 where the program leaves it open */
  double made, gone;  /* seconds since 1970; gone is 0 while it lives */
  struct group *next; /* of this process */
} group;
static group *_Atomic groups;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double today(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double patience(void) {
  const char *text = getenv("HCCL_EXEC_TIMEOUT");
  double seconds = text ? atof(text) : 1836;
  return seconds > 0 ? seconds : 1e9;
}

/* ---- is that process still the one that joined? (pids are reused, so its start counts too) */
static uint64_t started(int pid) {
  char path[32], text[1024];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  ssize_t got = read(file, text, sizeof text - 1);
  close(file);
  if (got <= 0) return 0;
  text[got] = 0;
  char *at = strrchr(text, ')'); /* the name before it may hold anything */
  if (!at || at[2] == 'Z' || at[2] == 'X') return 0;
  unsigned long long start = 0;
  int field = 2;
  for (at += 1; *at && field < 22; at++)
    if (*at == ' ' && ++field == 22) start = strtoull(at + 1, NULL, 10);
  return start ? start : 1;
}

static int lost_rank(group *g) {
  for (uint32_t r = 0; r < g->ranks; r++) {
    member *m = &g->head->members[r];
    int pid = atomic_load(&m->pid);
    if (r != g->rank && pid && started(pid) != atomic_load(&m->started)) return (int)r;
  }
  return -1;
}

/* ---- waiting: until `ready`, a lost rank, or the time is over */
typedef struct { group *g; const char *what; double since, checked; int turns; } wait_state;

static int keep_waiting(wait_state *w) {
  if (++w->turns < 200) { sched_yield(); return HCCL_OK; }
  usleep(w->turns < 2000 ? 20 : 200);
  double t = now();
  if (!w->since) w->since = w->checked = t;
  if (t - w->checked < 0.1) return HCCL_OK;
  w->checked = t;
  int lost = lost_rank(w->g);
  if (lost >= 0) {
    joy_fail("rehearsal: rank %d (process %d) of group %s ended while rank %u waited for it in %s",
             lost, atomic_load(&w->g->head->members[lost].pid), w->g->name, w->g->rank, w->what);
    return HCCL_REMOTE;
  }
  if (t - w->since > patience()) {
    joy_fail("rehearsal: rank %u of group %s waited %.0f s in %s for the others "
             "(HCCL_EXEC_TIMEOUT)", w->g->rank, w->g->name, t - w->since, w->what);
    return HCCL_TIMEOUT;
  }
  return HCCL_OK;
}

/* ---- do all ranks mean the same? On a chip ranks that don't hang, or fail with other words. */
static const char *const type_names[] = {
  "int8", "int16", "int32", "float16", "float32", "int64", "uint64", "uint8", "uint16", "uint32",
  "float64", "bfloat16", "int128",
};
static void describe(const intent *one, char *text, size_t room) {
  int known = one->type >= 0 && one->type < (int)(sizeof type_names / sizeof *type_names);
  const char *type = known ? type_names[one->type] : "another data type";
  int used = snprintf(text, room, "%s of %s", one->what, type);
  if (one->count && used > 0 && (size_t)used < room)
    snprintf(text + used, room - (size_t)used, " x %lu", (unsigned long)one->count);
}
static int compare(group *g, uint32_t round) {
  const intent *all = g->head->intents[round & 1];
  for (uint32_t r = 0; r < g->ranks; r++) {
    if (!g->now.what[0] || !memcmp(&all[r], &g->now, sizeof g->now)) continue;
    char mine[80], other[80];
    describe(&g->now, mine, sizeof mine);
    describe(&all[r], other, sizeof other);
    int alike = !strcmp(mine, other);
    joy_fail("rehearsal: the ranks of group %s call different collectives: rank %u %s, rank %u %s%s"
             " (data type, size, root and reduction have to be the same)", g->name, g->rank, mine, r,
             other, alike ? " with another root or reduction" : "");
    return HCCL_PARAMETER;
  }
  return HCCL_OK;
}

static int barrier(group *g, const char *what) {
  shared *s = g->head;
  uint32_t round = atomic_load(&s->round);
  s->intents[round & 1][g->rank] = g->now;
  if (atomic_fetch_add(&s->arrived, 1) + 1 == g->ranks) {
    atomic_store(&s->arrived, 0);
    atomic_fetch_add(&s->round, 1);
    return compare(g, round);
  }
  wait_state w = {g, what, 0, 0, 0};
  while (atomic_load(&s->round) == round) {
    int status = keep_waiting(&w);
    if (status && atomic_load(&s->round) == round) return status;
  }
  return compare(g, round);
}

/* ---- groups */
JOY_PUBLIC int HcclGetRootInfo(char *info) {
  static _Atomic int number;
  int file = memfd_create("joymigrate-group", MFD_CLOEXEC);
  if (file < 0) {
    joy_fail("rehearsal: no shared memory for a process group (memfd_create failed)");
    return HCCL_UNAVAILABLE;
  }
  memset(info, 0, ROOT_INFO_BYTES);
  snprintf(info, ROOT_INFO_BYTES, "%d %d %d", getpid(), file, atomic_fetch_add(&number, 1));
  return HCCL_OK;
}

/* `owner`: this rank made the root info, where it was made in this process. */
static int join(group *g, const char *info, int owner) {
  int pid, file, number;
  char path[64];
  if (sscanf(info, "%d %d %d", &pid, &file, &number) != 3) return HCCL_PARAMETER;
  snprintf(g->name, sizeof g->name, "rehearsal_%d_%d", pid, number);
  snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, file);
  g->file = open(path, O_RDWR | O_CLOEXEC);
  size_t bytes = HEAD + g->ranks * SLOT;
  if (g->file < 0 || ftruncate(g->file, (off_t)bytes) < 0) return HCCL_UNAVAILABLE;
  char *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, g->file, 0);
  if (base == MAP_FAILED) return HCCL_UNAVAILABLE;
  g->head = (shared *)base;
  g->slots = base + HEAD;
  member *me = &g->head->members[g->rank];
  atomic_store(&me->started, started(getpid()));
  atomic_store(&me->pid, getpid());
  int status = barrier(g, "the making of the group");
  if (pid == getpid() && owner) close(file); /* everybody has opened it */
  return status;
}

static int enter(uint32_t ranks, const char *info, uint32_t rank, void **out, int owner,
                 int device, uint32_t buffer) {
  if (ranks > MAX_RANKS) {
    joy_fail("rehearsal: a group of %u ranks; at most %d can be rehearsed", ranks, MAX_RANKS);
    return HCCL_NOT_SUPPORTED;
  }
  group *g = calloc(1, sizeof *g);
  g->ranks = ranks;
  g->rank = rank;
  g->process = getpid();
  g->device = device;
  g->buffer = buffer;
  g->made = today();
  int status = join(g, info, owner);
  if (status == HCCL_UNAVAILABLE)
    joy_fail("rehearsal: rank %u cannot reach the shared memory of the group; all ranks of a "
             "rehearsal run on one machine, as one user", rank);
  if (status) { free(g); return status; }
  g->next = atomic_load(&groups);
  while (!atomic_compare_exchange_weak(&groups, &g->next, g))
    ;
  *out = g;
  return HCCL_OK;
}
/* The group of a name, as kernels that communicate by themselves get it, seen from `rank` (-1: the
 * only or newest one here). NULL where this process has none. */
JOY_PUBLIC void *joy_group(const char *name, int rank) {
  for (group *g = atomic_load(&groups); g; g = g->next)
    if (g->head && !strcmp(g->name, name) && (rank < 0 || (uint32_t)rank == g->rank)) return g;
  return NULL;
}
JOY_PUBLIC int HcclCommInitRootInfo(uint32_t ranks, const char *info, uint32_t rank, void **out) {
  return enter(ranks, info, rank, out, 1, joy_device(), 0);
}
/* As far as HcclCommConfig is looked at: its head, and the size of a buffer in MiB. */
typedef struct { char head[24]; uint32_t buffer; } configuration;
JOY_PUBLIC int HcclCommInitRootInfoConfig(uint32_t ranks, const char *info, uint32_t rank,
                                          const configuration *given, void **out) {
  uint32_t buffer = given && given->buffer != UINT32_MAX ? given->buffer : 0;
  return enter(ranks, info, rank, out, 1, joy_device(), buffer);
}
/* One line per group that this process made: name, ranks, rank, device, MiB, made, gone. */
JOY_PUBLIC void joy_groups(char *text, size_t room) {
  size_t used = 0;
  *text = 0;
  for (group *g = atomic_load(&groups); g && used + 160 < room; g = g->next) {
    if (g->process != getpid()) continue;
    used += (size_t)snprintf(text + used, room - used, "%s %u %u %d %u %.3f %.3f %u\n", g->name,
                             g->ranks, g->rank, g->device, g->buffer, g->made, g->gone,
                             g->crossed);
  }
}
/* One process with several devices, as in `nn.DataParallel`: its ranks enter at the same time, in
 * threads of their own, as the package calls them later. */
typedef struct {
  pthread_t thread; uint32_t ranks, rank; const char *info; void **out; int device;
} entrant;
static void *enter_one(void *arg) {
  entrant *e = arg;
  return (void *)(intptr_t)enter(e->ranks, e->info, e->rank, e->out, e->rank == 0, e->device, 0);
}
JOY_PUBLIC int HcclCommInitAll(uint32_t ranks, int32_t *devices, void **out) {
  if (!ranks || ranks > JOY_MAX_DEVICES) return HCCL_PARAMETER;
  char info[ROOT_INFO_BYTES];
  entrant all[JOY_MAX_DEVICES];
  int status = HcclGetRootInfo(info);
  if (status) return status;
  for (uint32_t r = 0; r < ranks; r++) {
    all[r] = (entrant){0, ranks, r, info, &out[r], devices[r]};
    if (pthread_create(&all[r].thread, NULL, enter_one, &all[r])) {
      joy_fail("rehearsal: no thread for rank %u of a group within one process", r);
      abort(); /* the ranks that entered wait for this one */
    }
  }
  for (uint32_t r = 0; r < ranks; r++) {
    void *ended;
    pthread_join(all[r].thread, &ended);
    if (!status) status = (int)(intptr_t)ended;
  }
  return status;
}
/* On the chip a send waits in its stream until the peer receives. Two sends that both stand before
 * the receive of the other's would wait for ever; here sending never blocks, so they are counted.
 * Calls between the start and the end of a batch are given to the chip together. */
typedef struct { group *g; uint32_t peer; int receives; } exchange;
static __thread exchange batch[2 * MAX_RANKS];
static __thread uint32_t batched;
static __thread int depth;

static void count_exchange(group *g, uint32_t peer, int receives) {
  if (depth) {
    if (batched < 2 * MAX_RANKS) batch[batched++] = (exchange){g, peer, receives};
    return;
  }
  shared *s = g->head;
  uint32_t me = g->rank;
  if (receives) { atomic_fetch_add(&s->receives[me][peer], 1); return; }
  atomic_store(&s->receives_then[me][peer], atomic_load(&s->receives[me][peer]));
  uint32_t number = atomic_fetch_add(&s->sends[me][peer], 1) + 1;
  if (atomic_load(&s->sends[peer][me]) > atomic_load(&s->receives[me][peer]) &&
      atomic_load(&s->receives_then[peer][me]) < number)
    g->crossed++;
}
JOY_PUBLIC int HcclGroupStart(void) { depth++; return HCCL_OK; }
JOY_PUBLIC int HcclGroupEnd(void) {
  if (!depth || --depth) return HCCL_OK;
  for (int receives = 1; receives >= 0; receives--)
    for (uint32_t i = 0; i < batched; i++)
      if (batch[i].receives == receives) count_exchange(batch[i].g, batch[i].peer, receives);
  batched = 0;
  return HCCL_OK;
}
JOY_PUBLIC int HcclCommDestroy(void *handle) {
  group *g = handle;
  if (!g || !g->head) return HCCL_OK;
  munmap(g->head, HEAD + g->ranks * SLOT);
  close(g->file);
  g->gone = today();
  g->head = NULL; /* the struct stays: a receive may still wait for it in a stream */
  return HCCL_OK;
}
JOY_PUBLIC uint32_t HcclGetCommConfigCapability(void) { return 0; }
JOY_PUBLIC int HcclGetCommName(void *handle, char *name) {
  snprintf(name, 128, "%s", ((group *)handle)->name);
  return HCCL_OK;
}
JOY_PUBLIC int HcclGetCommAsyncError(void *handle, int *error) {
  (void)handle;
  *error = HCCL_OK;
  return HCCL_OK;
}
JOY_PUBLIC int HcclGetRankSize(void *handle, uint32_t *ranks) {
  *ranks = ((group *)handle)->ranks;
  return HCCL_OK;
}
JOY_PUBLIC int HcclGetRankId(void *handle, uint32_t *rank) {
  *rank = ((group *)handle)->rank;
  return HCCL_OK;
}
JOY_PUBLIC const char *HcclGetErrorString(int code) {
  switch (code) {
    case HCCL_NOT_SUPPORTED: return "HCCL_E_NOT_SUPPORT";
    case HCCL_TIMEOUT: return "HCCL_E_TIMEOUT";
    case HCCL_REMOTE: return "HCCL_E_REMOTE: another rank of the rehearsal ended";
    default: return "HCCL error of the rehearsal device";
  }
}

/* ---- numbers */
static uint64_t width(int type) {
  switch (type) {
    case D_I16: case D_F16: case D_U16: case D_BF16: return 2;
    case D_I32: case D_F32: case D_U32: return 4;
    case D_I64: case D_U64: case D_F64: return 8;
    case D_I128: return 16;
    default: return 1;
  }
}

#define COMBINE(a, b) (op == SUM ? (a) + (b) : op == PROD ? (a) * (b) \
                       : op == MAX ? ((a) > (b) ? (a) : (b)) : ((a) < (b) ? (a) : (b)))
#define PLAIN(type)                                                                   \
  do {                                                                                \
    type *x = into;                                                                   \
    const type *y = from;                                                             \
    for (uint64_t i = 0; i < count; i++) x[i] = (type)COMBINE(x[i], y[i]);            \
  } while (0)
#define SHORT_FLOAT(widen, narrow)                                                    \
  do {                                                                                \
    uint16_t *x = into;                                                               \
    const uint16_t *y = from;                                                         \
    for (uint64_t i = 0; i < count; i++) {                                            \
      float a = widen(x[i]), b = widen(y[i]);                                         \
      x[i] = narrow(COMBINE(a, b));                                                   \
    }                                                                                 \
  } while (0)

/* The types that the chip's collectives reduce; the rest is refused there as well. */
static int reduce(void *into, const void *from, uint64_t count, int type, int op) {
  switch (type) {
    case D_F32: PLAIN(float); return HCCL_OK;
    case D_F16: SHORT_FLOAT(joy_half_to_float, joy_float_to_half); return HCCL_OK;
    case D_BF16: SHORT_FLOAT(joy_bf16_to_float, joy_float_to_bf16); return HCCL_OK;
    case D_I8: PLAIN(int8_t); return HCCL_OK;
    case D_I16: PLAIN(int16_t); return HCCL_OK;
    case D_I32: PLAIN(int32_t); return HCCL_OK;
    case D_I64: PLAIN(int64_t); return HCCL_OK;
    default:
      joy_fail("rehearsal: HCCL cannot reduce data type %d (documented: int8, int16, int32, "
               "int64, float16, float32, bfloat16)", type);
      return HCCL_NOT_SUPPORTED;
  }
}

static char *slot(group *g, uint32_t rank) { return g->slots + rank * SLOT; }
static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* How far the parts of all ranks reach, in elements. */
static uint64_t reach(const group *g, const uint64_t *counts, const uint64_t *starts) {
  uint64_t most = 0;
  for (uint32_t r = 0; r < g->ranks; r++)
    if (counts[r] && starts[r] + counts[r] > most) most = starts[r] + counts[r];
  return most;
}

/* A chip records collectives in a graph; here nobody would replay them. */
static int captured(void) {
  joy_fail("rehearsal device: collectives in a captured graph are not simulated");
  return HCCL_NOT_SUPPORTED;
}
/* Whatever still waits in the stream comes first. */
#define ENTER(handle, stream)                                                         \
  group *g = handle;                                                                  \
  if (joy_capturing(stream)) return captured();                                         \
  if (joy_stream_drain(stream, 1) < 0) return HCCL_REMOTE;                            \
  int status = HCCL_OK
#define READS_AND_WRITES(what, read, read_bytes, written, written_bytes) \
  joy_order_work(stream, what, read, read_bytes, written, written_bytes)
/* What this rank is about to do. `many` is 0 where ranks may differ in it. */
#define MEANS(name, kind, many, how, whom)                                       \
  do {                                                                           \
    memset(&g->now, 0, sizeof g->now);                                           \
    snprintf(g->now.what, sizeof g->now.what, "%s", name);                       \
    g->now.type = kind; g->now.count = many; g->now.op = how; g->now.root = whom; \
  } while (0)
#define TRY(call) do { if ((status = (call))) return status; } while (0)

/* ---- reductions: `keep` says whether this rank wants the result */
static int reduce_all(group *g, const char *what, const char *send, char *receive, uint64_t count,
                      int type, int op, int keep) {
  int status;
  uint64_t each = width(type), room = SLOT / each, done = 0;
  do {
    uint64_t part = least(count - done, room);
    memcpy(slot(g, g->rank), send + done * each, part * each);
    TRY(barrier(g, what));
    if (keep) {
      char *into = receive + done * each;
      memcpy(into, slot(g, 0), part * each);
      for (uint32_t r = 1; r < g->ranks; r++) TRY(reduce(into, slot(g, r), part, type, op));
      if (g->ranks == 1) TRY(reduce(into, slot(g, 0), 0, type, op));
    }
    TRY(barrier(g, what));
    done += part;
  } while (done < count);
  return HCCL_OK;
}

JOY_PUBLIC int HcclAllReduce(void *send, void *receive, uint64_t count, int type, int op,
                             void *handle, void *stream) {
  ENTER(handle, stream);
  MEANS("all_reduce", type, count, op, 0);
  READS_AND_WRITES("all_reduce", send, count * width(type), receive, count * width(type));
  status = reduce_all(g, "all_reduce", send, receive, count, type, op, 1);
  return status;
}
JOY_PUBLIC int HcclReduce(void *send, void *receive, uint64_t count, int type, int op,
                          uint32_t root, void *handle, void *stream) {
  ENTER(handle, stream);
  MEANS("reduce", type, count, op, root);
  READS_AND_WRITES("reduce", send, count * width(type), receive,
                   g->rank == root ? count * width(type) : 0);
  status = reduce_all(g, "reduce", send, receive, count, type, op, g->rank == root);
  return status;
}

/* `counts[r]` elements from `starts[r]` on go to rank r. */
static int reduce_parts(group *g, const char *what, const char *send, const uint64_t *counts,
                        const uint64_t *starts, char *receive, int type, int op) {
  int status = HCCL_OK;
  uint64_t each = width(type);
  for (uint32_t r = 0; r < g->ranks && !status; r++)
    status = reduce_all(g, what, send + starts[r] * each, receive, counts[r], type, op,
                        r == g->rank);
  return status;
}

JOY_PUBLIC int HcclReduceScatter(void *send, void *receive, uint64_t count, int type, int op,
                                 void *handle, void *stream) {
  ENTER(handle, stream);
  MEANS("reduce_scatter", type, count, op, 0);
  READS_AND_WRITES("reduce_scatter", send, g->ranks * count * width(type), receive,
                   count * width(type));
  uint64_t counts[MAX_RANKS], starts[MAX_RANKS], bytes = count * width(type);
  for (uint32_t r = 0; r < g->ranks; r++) { counts[r] = count; starts[r] = r * count; }
  char *result = malloc(bytes + 1); /* `receive` may be a part of `send` */
  status = reduce_parts(g, "reduce_scatter", send, counts, starts, result, type, op);
  if (!status) memcpy(receive, result, bytes);
  free(result);
  return status;
}
JOY_PUBLIC int HcclReduceScatterV(void *send, const uint64_t *counts, const uint64_t *starts,
                                  void *receive, uint64_t count, int type, int op, void *handle,
                                  void *stream) {
  ENTER(handle, stream);
  MEANS("reduce_scatter_v", type, 0, op, 0);
  READS_AND_WRITES("reduce_scatter", send, reach(g, counts, starts) * width(type), receive,
                   count * width(type));
  char *result = malloc(count * width(type) + 1);
  status = reduce_parts(g, "reduce_scatter", send, counts, starts, result, type, op);
  if (!status) memcpy(receive, result, count * width(type));
  free(result);
  return status;
}

/* ---- copies to everybody */
JOY_PUBLIC int HcclBroadcast(void *buffer, uint64_t count, int type, uint32_t root, void *handle,
                             void *stream) {
  ENTER(handle, stream);
  MEANS("broadcast", type, count, 0, root);
  int gives = g->rank == root;
  READS_AND_WRITES("broadcast", buffer, gives ? count * width(type) : 0, buffer,
                   gives ? 0 : count * width(type));
  uint64_t bytes = count * width(type);
  for (uint64_t at = 0; at < bytes; at += SLOT) {
    uint64_t part = least(bytes - at, SLOT);
    if (g->rank == root) memcpy(slot(g, root), (char *)buffer + at, part);
    TRY(barrier(g, "broadcast"));
    if (g->rank != root) memcpy((char *)buffer + at, slot(g, root), part);
    TRY(barrier(g, "broadcast"));
  }
  return status;
}

static int gather(group *g, const char *send, char *receive, const uint64_t *bytes,
                  const uint64_t *starts) {
  int status;
  uint64_t longest = 0;
  for (uint32_t r = 0; r < g->ranks; r++) longest = bytes[r] > longest ? bytes[r] : longest;
  for (uint64_t at = 0; at < longest; at += SLOT) {
    uint64_t mine = bytes[g->rank];
    if (at < mine) memcpy(slot(g, g->rank), send + at, least(mine - at, SLOT));
    TRY(barrier(g, "all_gather"));
    for (uint32_t r = 0; r < g->ranks; r++)
      if (at < bytes[r]) memcpy(receive + starts[r] + at, slot(g, r), least(bytes[r] - at, SLOT));
    TRY(barrier(g, "all_gather"));
  }
  return HCCL_OK;
}
JOY_PUBLIC int HcclAllGather(void *send, void *receive, uint64_t count, int type, void *handle,
                             void *stream) {
  ENTER(handle, stream);
  MEANS("all_gather", type, count, 0, 0);
  READS_AND_WRITES("all_gather", send, count * width(type), receive,
                   g->ranks * count * width(type));
  uint64_t bytes[MAX_RANKS], starts[MAX_RANKS];
  for (uint32_t r = 0; r < g->ranks; r++) {
    bytes[r] = count * width(type);
    starts[r] = r * bytes[r];
  }
  status = gather(g, send, receive, bytes, starts);
  return status;
}
JOY_PUBLIC int HcclAllGatherV(const void *send, uint64_t count, void *receive,
                              const uint64_t *counts, const uint64_t *offsets, int type,
                              void *handle, void *stream) {
  ENTER(handle, stream);
  MEANS("all_gather_v", type, 0, 0, 0);
  READS_AND_WRITES("all_gather", send, count * width(type), receive,
                   reach(g, counts, offsets) * width(type));
  (void)count;
  uint64_t bytes[MAX_RANKS], starts[MAX_RANKS];
  for (uint32_t r = 0; r < g->ranks; r++) {
    bytes[r] = counts[r] * width(type);
    starts[r] = offsets[r] * width(type);
  }
  status = gather(g, send, receive, bytes, starts);
  return status;
}

/* ---- point to point: a byte stream per pair in the sparse part of the file. Sending never
 * blocks; receiving waits in its stream, so that `irecv` before `isend` works as on the chip. */
static off_t mailbox(group *g, uint32_t from, uint32_t to, uint64_t at) {
  return (off_t)(MAILBOX * (1 + (uint64_t)from * g->ranks + to) + at);
}
static int post(group *g, const char *data, uint64_t bytes, uint32_t to) {
  uint64_t start = atomic_load(&g->head->sent[g->rank][to]), done = 0;
  while (done < bytes) {
    ssize_t n = pwrite(g->file, data + done, bytes - done, mailbox(g, g->rank, to, start + done));
    if (n <= 0) {
      joy_fail("rehearsal: no memory for a message of %lu bytes", (unsigned long)bytes);
      return HCCL_UNAVAILABLE;
    }
    done += (uint64_t)n;
  }
  atomic_store(&g->head->sent[g->rank][to], start + bytes);
  return HCCL_OK;
}
static int fetch(group *g, char *data, uint64_t bytes, uint32_t from) {
  uint64_t start = g->received[from], done = 0;
  wait_state w = {g, "recv", 0, 0, 0};
  while (atomic_load(&g->head->sent[from][g->rank]) < start + bytes) {
    int status = keep_waiting(&w);
    if (status && atomic_load(&g->head->sent[from][g->rank]) < start + bytes) return status;
  }
  while (done < bytes) {
    ssize_t n = pread(g->file, data + done, bytes - done, mailbox(g, from, g->rank, start + done));
    if (n <= 0) return HCCL_UNAVAILABLE;
    done += (uint64_t)n;
  }
  fallocate(g->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
            mailbox(g, from, g->rank, start), (off_t)bytes);
  g->received[from] = start + bytes;
  return HCCL_OK;
}

typedef struct { group *g; char *data; uint64_t bytes; uint32_t from; } receipt;
static int receive_later(void *arg, int block) {
  receipt *r = arg;
  group *g = r->g;
  if (!g->head) { free(r); return 0; }
  uint64_t wanted = g->received[r->from] + r->bytes;
  if (!block && atomic_load(&g->head->sent[r->from][g->rank]) < wanted) return 1;
  int status = fetch(g, r->data, r->bytes, r->from);
  free(r);
  return status ? -status : 0;
}
static void expect(group *g, char *data, uint64_t bytes, uint32_t from, void *stream) {
  receipt *r = malloc(sizeof *r);
  *r = (receipt){g, data, bytes, from};
  joy_stream_push(stream, receive_later, r);
}

JOY_PUBLIC int HcclSend(void *data, uint64_t count, int type, uint32_t to, void *handle,
                        void *stream) {
  if (joy_capturing(stream)) return captured();
  count_exchange(handle, to, 0);
  if (joy_order_on()) joy_stream_drain(stream, 0); /* a receive before it may wait for this one */
  joy_order_work(stream, "send", data, count * width(type), NULL, 0);
  return post(handle, data, count * width(type), to);
}
JOY_PUBLIC int HcclRecv(void *data, uint64_t count, int type, uint32_t from, void *handle,
                        void *stream) {
  if (joy_capturing(stream)) return captured();
  count_exchange(handle, from, 1);
  joy_order_work(stream, "recv", NULL, 0, data, count * width(type));
  expect(handle, data, count * width(type), from, stream);
  return HCCL_OK;
}

typedef struct { int kind; void *data; uint64_t count; int type; uint32_t peer; } message;
JOY_PUBLIC int HcclBatchSendRecv(message *messages, uint32_t count, void *handle, void *stream) {
  int status = HcclGroupStart();
  for (uint32_t i = 0; i < count && !status; i++) {
    message *m = &messages[i];
    status = m->kind == 0 ? HcclSend(m->data, m->count, m->type, m->peer, handle, stream)
                          : HcclRecv(m->data, m->count, m->type, m->peer, handle, stream);
  }
  HcclGroupEnd();
  return status;
}

JOY_PUBLIC int HcclScatter(void *send, void *receive, uint64_t count, int type, uint32_t root,
                           void *handle, void *stream) {
  ENTER(handle, stream);
  READS_AND_WRITES("scatter", send, g->rank == root ? g->ranks * count * width(type) : 0, receive,
                   count * width(type));
  uint64_t bytes = count * width(type);
  if (g->rank != root) return fetch(g, receive, bytes, root);
  for (uint32_t r = 0; r < g->ranks; r++)
    if (r != root) TRY(post(g, (char *)send + r * bytes, bytes, r));
  memmove(receive, (char *)send + root * bytes, bytes);
  return status;
}

JOY_PUBLIC int HcclAlltoAllV(const void *send, const uint64_t *counts, const uint64_t *starts,
                             int type, void *receive, const uint64_t *expected,
                             const uint64_t *places, int receive_type, void *handle,
                             void *stream) {
  ENTER(handle, stream);
  READS_AND_WRITES("all_to_all", send, reach(g, counts, starts) * width(type), receive,
                   reach(g, expected, places) * width(type));
  (void)receive_type;
  uint64_t each = width(type);
  const char *from = send;
  char *into = receive;
  for (uint32_t r = 0; r < g->ranks; r++) {
    if (r != g->rank) TRY(post(g, from + starts[r] * each, counts[r] * each, r));
    else memmove(into + places[r] * each, from + starts[r] * each, counts[r] * each);
  }
  for (uint32_t r = 0; r < g->ranks; r++)
    if (r != g->rank) TRY(fetch(g, into + places[r] * each, expected[r] * each, r));
  return status;
}
JOY_PUBLIC int HcclAlltoAll(const void *send, uint64_t sent, int type, void *receive, uint64_t got,
                            int receive_type, void *handle, void *stream) {
  uint64_t counts[MAX_RANKS], starts[MAX_RANKS], expected[MAX_RANKS], places[MAX_RANKS];
  for (uint32_t r = 0; r < ((group *)handle)->ranks; r++) {
    counts[r] = sent;
    starts[r] = r * sent;
    expected[r] = got;
    places[r] = r * got;
  }
  return HcclAlltoAllV(send, counts, starts, type, receive, expected, places, receive_type, handle,
                       stream);
}
