/* Host checks: before a chip kernel is noted, the vendor's own published host code is asked whether
 * it would take the call. It comes from a library that the user built from a checkout of theirs
 * (see host_checks/); without one nothing here runs.
 *
 * Only what is refused for its parameters (161xxx), before any kernel was recorded, is a refusal.
 * Inner errors (561xxx), refusals later on, crashes and missing functions are "unknown". */
#define _GNU_SOURCE
#include "joy.h"

#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PARAMETER_ERRORS 161 /* of a status, its thousands */
#define NULL_PARAMETER 161001
#define LARGEST 4096 /* kernels */
enum { ASKED, REFUSED, UNKNOWN, ABSENT, CRASHED, SKIPPED, OUTCOMES };
#define UNTRACED 512 /* calls of one kernel that are asked outside of a first call */

static void *library;
static uint64_t outcomes[OUTCOMES];
static char broken[LARGEST]; /* kernels whose host code crashed once */
static char left[LARGEST];   /* kernels whose arguments are of our making: never asked */
static uint16_t untraced[LARGEST];
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static const char *(*last_error)(void);
static const char *(*recorded)(void);
static int (*shapes_missing)(void);
static void (*forget)(void);
static int none, *asking = &none; /* tells stand-ins for missing functions that a crash is wanted */
static __thread int last_status;
static __thread char last_text[4096], last_kernels[4096];
static __thread const char *last_refused = "";
static __thread uint64_t last_counts[OUTCOMES];

int joy_host_on(void) { return library != NULL; }
void *joy_host_function(const char *name) { return library ? dlsym(library, name) : NULL; }

/* Loads the library for a chip model, such as "910B". 0, or -1 with a message of the loader. */
JOY_PUBLIC int joy_host_open(const char *path, const char *model) {
  /* Its own names first: it brings stand-ins for functions that the simulated runtime has too. */
  void *opened = dlopen(path, RTLD_LAZY | RTLD_LOCAL | RTLD_DEEPBIND);
  if (!opened) {
    joy_fail("%s", dlerror());
    return -1;
  }
  void (*choose)(const char *) = (void (*)(const char *))dlsym(opened, "joy_host_model");
  last_error = (const char *(*)(void))dlsym(opened, "joy_host_error");
  recorded = (const char *(*)(void))dlsym(opened, "joy_host_kernels");
  shapes_missing = (int (*)(void))dlsym(opened, "joy_host_shapes_missing");
  forget = (void (*)(void))dlsym(opened, "joy_host_clear");
  if (!choose || !last_error || !recorded || !forget || !shapes_missing) {
    joy_fail("not a library of host checks");
    return -1;
  }
  int *flag = dlsym(opened, "joy_host_asking");
  if (flag) asking = flag;
  choose(model);
  library = opened;
  return 0;
}
JOY_PUBLIC void joy_host_leave(int number) { left[number] = 1; }
JOY_PUBLIC const uint64_t *joy_host_outcomes(void) { return outcomes; }
JOY_PUBLIC int joy_host_status(void) { return last_status; }
JOY_PUBLIC const char *joy_host_text(void) { return last_text; }
/* Names of the kernels that the last call in this thread would have launched. */
JOY_PUBLIC const char *joy_host_launched(void) { return last_kernels; }
JOY_PUBLIC const char *joy_host_refused(void) { return last_refused; }
/* Outcomes since the last reset in this thread. */
JOY_PUBLIC const uint64_t *joy_host_since(void) { return last_counts; }
JOY_PUBLIC void joy_host_reset(void) {
  last_status = 0;
  last_kernels[0] = last_text[0] = 0;
  memset(last_counts, 0, sizeof last_counts);
}
static void count(int outcome) {
  __atomic_add_fetch(&outcomes[outcome], 1, __ATOMIC_RELAXED);
  last_counts[outcome]++;
}

/* ---- pairs of descriptors: an open hash table, grown by doubling */
typedef struct { void *ours, *theirs; int kind; } pair;
static pair *pairs;
static size_t room, held; /* held counts removed places too */
static pthread_mutex_t table = PTHREAD_MUTEX_INITIALIZER;
#define GONE ((void *)1)

static size_t place(void *ours) { return ((uintptr_t)ours >> 4) * 11400714819323198485ull >> 20; }
static pair *find(void *ours) {
  for (size_t i = place(ours), n = 0; n < room; i++, n++) {
    pair *at = &pairs[i & (room - 1)];
    if (at->ours == ours) return at;
    if (!at->ours) return NULL;
  }
  return NULL;
}
static void insert(void *ours, void *theirs, int kind) {
  for (size_t i = place(ours);; i++) {
    pair *at = &pairs[i & (room - 1)];
    if (at->ours) continue;
    *at = (pair){ours, theirs, kind};
    held++;
    return;
  }
}
void joy_host_pair(void *ours, void *theirs, int kind) {
  pthread_mutex_lock(&table);
  if (held * 2 >= room) {
    pair *old = pairs;
    size_t before = room;
    room = room ? room * 2 : 1024;
    pairs = calloc(room, sizeof *pairs);
    held = 0;
    for (size_t i = 0; i < before; i++)
      if (old[i].ours && old[i].ours != GONE) insert(old[i].ours, old[i].theirs, old[i].kind);
    free(old);
  }
  insert(ours, theirs, kind);
  pthread_mutex_unlock(&table);
}
void *joy_host_other(void *ours) {
  if (!ours || ours == GONE) return ours;
  pthread_mutex_lock(&table);
  pair *at = find(ours);
  void *theirs = at ? at->theirs : ours;
  pthread_mutex_unlock(&table);
  return theirs;
}
int joy_host_kind(void *ours) {
  if (!ours || ours == GONE) return 0;
  pthread_mutex_lock(&table);
  pair *at = find(ours);
  int kind = at ? at->kind : 0;
  pthread_mutex_unlock(&table);
  return kind;
}
void joy_host_drop(void *ours, const char *destroy) {
  if (!ours) return;
  pthread_mutex_lock(&table);
  pair *at = find(ours);
  void *theirs = at ? at->theirs : NULL;
  if (at) at->ours = GONE;
  pthread_mutex_unlock(&table);
  int (*end)(void *) = theirs && destroy ? (int (*)(void *))dlsym(library, destroy) : NULL;
  if (end) end(theirs);
}

/* ---- calling with arguments as they came */
#define S(n) frame->stack[n]
#define S8(n) S(n), S(n + 1), S(n + 2), S(n + 3), S(n + 4), S(n + 5), S(n + 6), S(n + 7)
#define U8 uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t
#define D8 double, double, double, double, double, double, double, double
#define STACK 48 /* words of the stack that are passed on: more than any kernel takes */

int joy_call(joy_function function, const joy_frame *frame) {
  const uint64_t *w = frame->whole;
  const double *r = frame->real;
#if defined(__x86_64__)
  int (*f)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, D8, U8, U8, U8, U8, U8, U8) =
      (void *)function;
  return f(w[0], w[1], w[2], w[3], w[4], w[5],
#else
  int (*f)(U8, D8, U8, U8, U8, U8, U8, U8) = (void *)function;
  return f(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7],
#endif
           r[0], r[1], r[2], r[3], r[4], r[5], r[6], r[7], S8(0), S8(8), S8(16), S8(24), S8(32),
           S8(40));
}

/* ---- a crash of the host code is no answer */
static __thread sigjmp_buf back;
static __thread volatile sig_atomic_t guarded;
static struct sigaction before[NSIG];
static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGABRT};

static void caught(int number) {
  if (guarded) siglongjmp(back, 1);
  sigaction(number, &before[number], NULL);
  raise(number);
}
static void guard(int on) {
  struct sigaction ours;
  memset(&ours, 0, sizeof ours);
  ours.sa_handler = caught;
  ours.sa_flags = SA_NODEFER;
  for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
    sigaction(signals[i], on ? &ours : &before[signals[i]], on ? &before[signals[i]] : NULL);
}

/* The arguments end with two addresses of the caller's stack, for workspace and executor. What
 * stands after them is the caller's own and may hold descriptors, too. */
int joy_words(const joy_frame *frame, uint64_t *words, int most) {
#if defined(__x86_64__)
  const int registers = 6;
#else
  const int registers = 8;
#endif
  const uint64_t near = (uint64_t)(uintptr_t)frame, reach = 1 << 20;
  int was_stack = 0;
  for (int i = 0; i < registers + STACK && i < most; i++) {
    uint64_t word = i < registers ? frame->whole[i] : frame->stack[i - registers];
    int is_stack = word > near && word - near < reach;
    words[i] = word;
    if (is_stack && was_stack) return i - 1;
    was_stack = is_stack;
  }
  return 0;
}

int joy_host_ask(int number, const char *name, const joy_frame *frame, int first) {
  if (!first && number < LARGEST && untraced[number]++ >= UNTRACED) {
    untraced[number] = UNTRACED;
    count(SKIPPED);
    return 0;
  }
  if (number < LARGEST && left[number]) {
    count(UNKNOWN);
    return 0;
  }
  if (number < LARGEST && broken[number]) {
    count(CRASHED);
    return 0;
  }
  char asked[256];
  snprintf(asked, sizeof asked, "%sGetWorkspaceSize", name);
  joy_function function = (joy_function)dlsym(library, asked);
  if (!function) {
    count(ABSENT);
    return 0;
  }
  joy_frame theirs = *frame;
  uint64_t stack[STACK];
  for (int i = 0; i < 8; i++)
    theirs.whole[i] = (uint64_t)(uintptr_t)joy_host_other((void *)(uintptr_t)frame->whole[i]);
  for (int i = 0; i < STACK; i++)
    stack[i] = (uint64_t)(uintptr_t)joy_host_other((void *)(uintptr_t)frame->stack[i]);
  theirs.stack = stack;
  pthread_mutex_lock(&one_at_a_time);
  forget();
  guard(1);
  guarded = *asking = 1;
  volatile int status = -1;
  if (!sigsetjmp(back, 1)) status = joy_call(function, &theirs);
  guarded = *asking = 0;
  guard(0);
  count(ASKED);
  int refused = 0;
  size_t used = strlen(last_kernels);
  if (status == -1) {
    if (number < LARGEST) broken[number] = 1;
    count(CRASHED);
  } else if (status) {
    int artefact = status == NULL_PARAMETER && (shapes_missing() || !*last_error());
    refused = status / 1000 == PARAMETER_ERRORS && !*recorded() && !artefact;
    count(refused ? REFUSED : UNKNOWN);
  } else {
    snprintf(last_kernels + used, sizeof last_kernels - used, "%s", recorded());
  }
  if (refused) {
    last_status = status;
    last_refused = name;
    snprintf(last_text, sizeof last_text, "%s", last_error());
    joy_fail("%s", last_text);
  }
  pthread_mutex_unlock(&one_at_a_time);
  if (joy_trace()) fprintf(stderr, "[rehearsal] host code of %s: %d\n", name, status);
  return refused ? status : 0;
}
