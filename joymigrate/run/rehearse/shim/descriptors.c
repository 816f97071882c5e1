/* Descriptors that are alive, by address, and the words of a call: the signature of a chip kernel is
 * not known here, so what among its arguments is a tensor or a list is found by address. */
#include "joy.h"

#include <pthread.h>
#include <stdlib.h>

/* An open hash table; places that were left count as held until it is made anew, of double size
 * where the descriptors that are alive need it. */
typedef struct { void *at; int kind; } entry;
static entry *entries;
static size_t room, held;
static pthread_mutex_t table = PTHREAD_MUTEX_INITIALIZER;
#define GONE ((void *)1)

static size_t place(void *at) { return ((uintptr_t)at >> 4) * 11400714819323198485ull >> 20; }
static entry *find(void *at) {
  for (size_t i = place(at), n = 0; n < room; i++, n++) {
    entry *e = &entries[i & (room - 1)];
    if (e->at == at) return e;
    if (!e->at) return NULL;
  }
  return NULL;
}
static void insert(void *at, int kind) {
  for (size_t i = place(at);; i++) {
    entry *e = &entries[i & (room - 1)];
    if (e->at) continue;
    *e = (entry){at, kind};
    held++;
    return;
  }
}
void joy_descriptor(void *at, int kind) {
  pthread_mutex_lock(&table);
  if (held * 2 >= room) {
    entry *old = entries;
    size_t before = room, alive = 0;
    for (size_t i = 0; i < before; i++) alive += old[i].at && old[i].at != GONE;
    room = !room ? 1024 : alive * 4 >= room ? room * 2 : room;
    entries = calloc(room, sizeof *entries);
    held = 0;
    for (size_t i = 0; i < before; i++)
      if (old[i].at && old[i].at != GONE) insert(old[i].at, old[i].kind);
    free(old);
  }
  insert(at, kind);
  pthread_mutex_unlock(&table);
}
int joy_descriptor_kind(void *at) {
  if (!at || at == GONE) return 0;
  pthread_mutex_lock(&table);
  entry *e = find(at);
  int kind = e ? e->kind : 0;
  pthread_mutex_unlock(&table);
  return kind;
}
void joy_descriptor_gone(void *at) {
  if (!at) return;
  pthread_mutex_lock(&table);
  entry *e = find(at);
  if (e) e->at = GONE;
  pthread_mutex_unlock(&table);
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
