/* Which work happens before which (`--mode async`). Every stream has a vector clock, the host has
 * one, an event keeps the clock of its stream. What a stream is given happens after all that the
 * host has waited for; nothing else is ordered.
 *
 * A non-blocking copy arrives as late as its order allows. Until the host has waited for it, the
 * pages of its pinned buffer are protected, so that whoever touches them is seen, numpy included.
 * Times of a chip are not modelled: an order that is missing is reported, whether it would show or
 * not. */
#define _GNU_SOURCE
#include "joy.h"
#include "order.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define POISON 0xA5 /* what the chip's own runtime marks memory with that nobody wrote */
#define PAGE 4096ul
#define POLLS 8     /* an allocator that polls an event gets "complete" then, whatever waits */
#define USER_POLLS 2
#define LOG 4096

static int on;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t host[JOY_CLOCK]; /* what the host has waited for; [0] counts the host's own work */
static uint32_t pool[JOY_CLOCK]; /* what an allocator found finished, by polling */
static uint32_t *clocks[JOY_CLOCK];
static uint32_t streams = 1;
static __thread int users;  /* this thread polls for the program, not for an allocator */
static __thread int inside; /* this thread holds the lock */

static void take(void) { pthread_mutex_lock(&lock); inside = 1; }
static void give(void) { inside = 0; pthread_mutex_unlock(&lock); }

JOY_PUBLIC void joy_order_start(void) { on = 1; }
JOY_PUBLIC void joy_order_user(int is) { users = is; }
int joy_order_on(void) { return on && !joy_tracing(); }

static void merge(uint32_t *into, const uint32_t *from) {
  for (uint32_t i = 0; i < streams; i++)
    if (from[i] > into[i]) into[i] = from[i];
}
static int covers(const uint32_t *clock, const uint32_t *other) {
  for (uint32_t i = 0; i < streams; i++)
    if (other[i] > clock[i]) return 0;
  return 1;
}

/* The number of a stream; beyond the last one they share it, which hides races and makes none. */
static uint32_t number_of(void *handle) {
  uint32_t *number = joy_stream_order(handle);
  if (!*number) {
    *number = streams < JOY_CLOCK ? streams++ : JOY_CLOCK - 1;
    if (!clocks[*number]) clocks[*number] = calloc(JOY_CLOCK, sizeof(uint32_t));
  }
  return *number;
}

/* One more piece of work for a stream; NULL is the host itself. */
static uint32_t enter(void *handle, int is_host, uint32_t *sequence, const uint32_t **clock) {
  uint32_t number = is_host ? 0 : number_of(handle);
  uint32_t *own = is_host ? host : clocks[number];
  if (!is_host) merge(own, host);
  *sequence = ++own[number];
  *clock = own;
  return number;
}

/* ---- what was accessed below the dispatcher: copies, collectives; read by the rehearsal */
static joy_access log_[LOG];
static uint32_t logged, lost;

static joy_access *note(int kind, const char *what, uint32_t stream, uint32_t sequence,
                        const uint32_t *clock) {
  if (logged == LOG) { lost++; return NULL; }
  joy_access *a = &log_[logged++];
  memset(a, 0, offsetof(joy_access, clock));
  a->kind = kind;
  a->stream = stream;
  a->sequence = sequence;
  a->what = what;
  memcpy(a->clock, clock, sizeof a->clock);
  return a;
}

JOY_PUBLIC uint32_t joy_order_logged(void) { return logged; }
JOY_PUBLIC uint32_t joy_order_take(joy_access *into, uint32_t room) {
  take();
  uint32_t count = logged < room ? logged : room;
  memcpy(into, log_, count * sizeof *into);
  logged -= count;
  memmove(log_, log_ + count, logged * sizeof *into);
  give();
  return count;
}

/* The rehearsal itself computes on a stream: its number, that of the work, and what it comes after. */
JOY_PUBLIC uint32_t joy_order_enter(void *handle, uint32_t *sequence, uint32_t *clock) {
  joy_stream_drain(handle, 1);
  take();
  const uint32_t *own;
  uint32_t number = enter(handle, 0, sequence, &own);
  memcpy(clock, own, streams * sizeof *clock);
  give();
  return number;
}

/* What the host has waited for, and what allocators found finished. */
JOY_PUBLIC void joy_order_known(uint32_t *of_host, uint32_t *of_pool) {
  take();
  memcpy(of_host, host, streams * sizeof *of_host);
  memcpy(of_pool, pool, streams * sizeof *of_pool);
  give();
}

/* Work of a stream that reads one range and writes another (either may be empty). */
void joy_order_work(void *handle, const char *what, const void *read, size_t read_bytes,
                    const void *written, size_t written_bytes) {
  if (!joy_order_on()) return;
  take();
  uint32_t sequence;
  const uint32_t *clock;
  uint32_t number = enter(handle, 0, &sequence, &clock);
  joy_access *a = note(JOY_WORK, what, number, sequence, clock);
  if (a) {
    a->read = (uint64_t)(uintptr_t)read, a->read_bytes = read_bytes;
    a->written = (uint64_t)(uintptr_t)written, a->written_bytes = written_bytes;
  }
  give();
}

/* ---- pinned memory: pages of its own per block, so that they can be protected */
typedef struct block { char *start; size_t bytes; int open; struct block *next; } block;
typedef struct copy {
  uint64_t number;
  int kind, settled; /* settled: the host waited, nothing to watch any more */
  char *from, *to, *near; /* `near` is the one on the host */
  size_t bytes;
  char *kept; /* what a copy to the host brings, until it arrives */
  uint32_t stream, sequence;
  block *of;
  struct copy *next;
} copy;
static block *blocks;
static copy *copies;
static uint64_t numbers;

static char *page_of(const char *address) { return (char *)((uintptr_t)address & ~(PAGE - 1)); }
static void guard(const copy *c, int how) {
  char *start = page_of(c->near);
  mprotect(start, (size_t)(page_of(c->near + c->bytes + PAGE - 1) - start), how);
}
static void open_block(const block *b) {
  if (b && b->start) mprotect(b->start, b->bytes, PROT_READ | PROT_WRITE);
}
static void close_block(const block *b) { /* protect what its copies still use */
  if (!b || b->open) return;
  for (copy *c = copies; c; c = c->next)
    if (c->of == b && !c->settled) guard(c, c->kind == JOY_TO_HOST ? PROT_NONE : PROT_READ);
}

/* ---- a touch: the fault handler notes it, opens the block and lets the program go on */
static joy_touch touches[256];
static volatile uint32_t touched;
static int (*tell)(int (*)(void *), void *);
static int (*told)(void *);
static void (*dump)(int, void *); /* the interpreter's own, made for fault handlers */
static void *(*thread_state)(void);
static int lines = -1;            /* the file it writes to */
static struct sigaction before;

static void touch(int signal, siginfo_t *info, void *context) {
  char *at = info->si_addr;
  if (info->si_code <= 0 && copies) return; /* sent on by another handler: the access comes again */
  int ours = inside; /* never meant to be: our own code opens a block before it touches it */
  if (!ours) take();
  for (block *b = info->si_code > 0 ? blocks : NULL; b; b = b->next) {
    if (!b->start || at < b->start || at >= b->start + b->bytes) continue;
    for (copy *c = copies; c; c = c->next)
      if (c->of == b && !c->settled && at >= c->near && at < c->near + c->bytes &&
          touched < sizeof touches / sizeof *touches) {
        joy_touch *it = &touches[touched];
        *it = (joy_touch){c->number, (uint64_t)lseek(lines, 0, SEEK_CUR), 0};
        if (dump && thread_state()) dump(lines, thread_state());
        it->to = (uint64_t)lseek(lines, 0, SEEK_CUR);
        touched++;
      }
    b->open = 1;
    open_block(b);
    if (!ours) give();
    if (tell) tell(told, NULL);
    return;
  }
  if (!ours) give();
  if (before.sa_flags & SA_SIGINFO && before.sa_sigaction) before.sa_sigaction(signal, info, context);
  else sigaction(SIGSEGV, &before, NULL); /* the same access once more, for whom it is meant */
}

/* Other handlers come later (faulthandler): ours is to be the first one. */
static void listen(void) {
  struct sigaction now;
  sigaction(SIGSEGV, NULL, &now);
  if (now.sa_flags & SA_SIGINFO && now.sa_sigaction == touch) return;
  before = now;
  struct sigaction ours = {.sa_sigaction = touch, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
  sigaction(SIGSEGV, &ours, NULL);
}

/* `add` is Py_AddPendingCall: `report` then runs in the interpreter, soon; `say` writes the stack
 * of a thread's `state` as text and may be missing. Returns the file that it is written to. */
JOY_PUBLIC int joy_order_listen(int (*add)(int (*)(void *), void *), int (*report)(void *),
                                void (*say)(int, void *), void *(*state)(void)) {
  tell = add;
  told = report;
  lines = memfd_create("rehearsal-lines", MFD_CLOEXEC);
  dump = lines < 0 ? NULL : say;
  thread_state = state;
  return lines;
}
JOY_PUBLIC uint32_t joy_order_touched(void) { return touched; }
JOY_PUBLIC uint32_t joy_order_touches(joy_touch *into) {
  uint32_t count = touched;
  memcpy(into, touches, count * sizeof *into);
  touched = 0;
  return count;
}

/* ---- copies that wait */
static void land(copy *c) { /* a copy to the host arrives */
  if (!c->kept) return;
  memcpy(c->to, c->kept, c->bytes);
  free(c->kept);
  c->kept = NULL;
}

/* Open what nobody needs to watch any more, and protect what is left in the same blocks. */
static void settle(int (*done)(const copy *, const void *), const void *with) {
  int any = 0;
  for (copy *c = copies; c; c = c->next)
    if (!c->settled && done(c, with)) {
      any = 1;
      open_block(c->of);
      land(c);
      c->settled = 1;
    }
  if (!any) return;
  for (block *b = blocks; b; b = b->next) {
    int left = 0;
    for (copy *c = copies; c; c = c->next) left |= c->of == b && !c->settled;
    if (!left) b->open = 0;
  }
  for (block *b = blocks; b; b = b->next) close_block(b);
  for (copy **link = &copies; *link;) {
    copy *c = *link;
    /* One to the device is freed by its stream, which still has it to bring. */
    if (!c->settled) { link = &c->next; continue; }
    *link = c->next;
    if (c->kind == JOY_TO_HOST || !c->from) free(c);
    else c->settled = 2;
  }
}
static int is_covered(const copy *c, const void *clock) {
  return ((const uint32_t *)clock)[c->stream] >= c->sequence;
}
static int overlaps(const copy *c, const void *range) {
  const copy *other = range;
  return c != other && c->near < other->near + other->bytes && other->near < c->near + c->bytes;
}
static int lies_in(const copy *c, const void *of) { return c->of == of; }

static int bring(void *arg, int wait) { /* a copy to the device arrives, in the order of its stream */
  (void)wait;
  copy *c = arg;
  take();
  open_block(c->of);
  memmove(c->to, c->from, c->bytes);
  close_block(c->of);
  c->from = NULL;
  int over = c->settled == 2;
  give();
  if (over) free(c);
  return 0;
}

int joy_order_copy(void *to, const void *from, size_t bytes, int kind, void *stream) {
  if (!joy_order_on() || !bytes) return 0;
  joy_stream_drain(stream, 1);
  take();
  uint32_t sequence;
  const uint32_t *clock;
  uint32_t number = enter(stream, 0, &sequence, &clock);
  joy_access *a = note(kind == JOY_TO_HOST || kind == JOY_TO_DEVICE ? kind : JOY_WORK,
                       "aclrtMemcpyAsync", number, sequence, clock);
  if (a) {
    a->read = (uint64_t)(uintptr_t)from, a->written = (uint64_t)(uintptr_t)to;
    a->read_bytes = a->written_bytes = bytes;
    a->number = ++numbers;
  }
  if (kind != JOY_TO_HOST && kind != JOY_TO_DEVICE) {
    give();
    return 0;
  }
  copy *c = calloc(1, sizeof *c);
  *c = (copy){.number = numbers, .kind = kind, .from = (char *)from, .to = to, .bytes = bytes,
              .near = kind == JOY_TO_HOST ? to : (char *)from, .stream = number,
              .sequence = sequence};
  for (block *b = blocks; b && !c->of; b = b->next)
    if (c->near >= b->start && c->near < b->start + b->bytes) c->of = b;
  settle(overlaps, c); /* an earlier copy over the same bytes: the streams' order decides */
  open_block(c->of);
  if (kind == JOY_TO_HOST) {
    c->kept = malloc(bytes);
    memcpy(c->kept, from, bytes);
  }
  memset(to, POISON, bytes);
  c->next = copies;
  copies = c;
  if (c->of) listen();
  close_block(c->of);
  give();
  if (kind == JOY_TO_DEVICE) joy_stream_push(stream, bring, c);
  return 1;
}

/* The host itself copies: it reads and writes now. */
void joy_order_host_copy(const void *to, const void *from, size_t bytes) {
  if (!joy_order_on() || !bytes) return;
  take();
  uint32_t sequence;
  const uint32_t *clock;
  enter(NULL, 1, &sequence, &clock);
  joy_access *a = note(JOY_WORK, "aclrtMemcpy", 0, sequence, clock);
  if (a) {
    a->read = (uint64_t)(uintptr_t)from, a->written = (uint64_t)(uintptr_t)to;
    a->read_bytes = a->written_bytes = bytes;
  }
  give();
}

void *joy_order_host_block(size_t bytes) {
  if (!on) return NULL;
  block *b = calloc(1, sizeof *b);
  b->bytes = (bytes + PAGE - 1) / PAGE * PAGE;
  if (!b->bytes) b->bytes = PAGE;
  b->start = mmap(NULL, b->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (b->start == MAP_FAILED) { free(b); return NULL; }
  take();
  b->next = blocks;
  blocks = b;
  give();
  return b->start;
}
int joy_order_host_free(void *start) {
  if (!on) return 0;
  joy_streams_drain(-1, 0); /* copies to the device may still read it */
  take();
  block **link = &blocks;
  while (*link && (*link)->start != start) link = &(*link)->next;
  block *found = *link;
  if (found) {
    settle(lies_in, found);
    munmap(found->start, found->bytes);
    found->start = NULL; /* the entry stays: the fault handler may look at it */
  }
  give();
  return found != NULL;
}

/* ---- events and waiting */
void joy_order_record(uint32_t **kept, int *polls, void *stream) {
  if (!joy_order_on()) return;
  take();
  uint32_t *own = clocks[number_of(stream)];
  merge(own, host);
  if (!*kept) *kept = calloc(JOY_CLOCK, sizeof **kept);
  memcpy(*kept, own, JOY_CLOCK * sizeof **kept);
  *polls = 0;
  give();
}
void joy_order_wait(void *stream, const uint32_t *kept) {
  if (!joy_order_on() || !kept) return;
  take();
  merge(clocks[number_of(stream)], kept);
  give();
}
static void host_knows(const uint32_t *clock) {
  merge(host, clock);
  settle(is_covered, host);
}
void joy_order_sync_event(const uint32_t *kept) {
  if (!joy_order_on() || !kept) return;
  take();
  host_knows(kept);
  give();
}
void joy_order_sync_stream(void *stream) {
  if (!joy_order_on()) return;
  take();
  host_knows(clocks[number_of(stream)]);
  give();
}
/* The host waits for what a stream was given so far: operators whose results' shapes are data. */
JOY_PUBLIC void joy_order_waits(void *stream) {
  joy_stream_drain(stream, 1);
  joy_order_sync_stream(stream);
}

/* A stream waits for what another one was given so far. */
JOY_PUBLIC void joy_order_follow(void *waiting, void *other) {
  joy_stream_drain(other, 1);
  take();
  uint32_t *from = clocks[number_of(other)];
  merge(clocks[number_of(waiting)], from);
  give();
}

static int still_waits(const uint32_t *clock) {
  for (copy *c = copies; c; c = c->next)
    if (!c->settled && clock[c->stream] >= c->sequence) return 1;
  return 0;
}
/* Is an event complete? The program learns it late, an allocator when nothing waits for it. */
int joy_order_query(const uint32_t *kept, int *polls) {
  if (!on || !kept) return 1; /* an allocator may poll while the vendor's C++ is looked at */
  take();
  int complete = covers(host, kept);
  if (!complete && users && ++*polls > USER_POLLS) {
    host_knows(kept);
    complete = 1;
  } else if (!complete && !users && (++*polls > POLLS || !still_waits(kept))) {
    merge(pool, kept);
    settle(is_covered, pool);
    complete = 1;
  }
  give();
  return complete;
}

/* In a forked child the copies are the parent's. */
JOY_PUBLIC void joy_order_forget(void) {
  pthread_mutex_init(&lock, NULL);
  for (block *b = blocks; b; b = b->next) open_block(b);
  copies = NULL;
  logged = touched = 0;
}
