/* Captured graphs: what is put into a stream between Begin and End becomes a list of nodes, which
 * Execute runs in order. Everything is also computed while it is captured, so that each operator
 * sees plausible numbers; at the end Python puts back what was there before (graphs.py). */
#include "joy.h"
#include "capture.h"
#include "order.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define LANES 32 /* streams of one capture */
enum { NONE, ACTIVE, VOIDED };
enum { GLOBAL, THREAD, RELAXED };
enum { BEGAN = 1, ENDED = 2, ABANDONED = 3, DESTROYED = 4 };

typedef struct node {
  int (*run)(void *);
  void *arg;
  int64_t number; /* of a node that Python runs; -1 for one of ours */
  int group;
  struct node *next;
} node;
typedef struct graph {
  node *first, **end;
  int status, mode, lanes, groups, group, refusal;
  int64_t id;
  void *origin;
  uint32_t work[LANES];
  void *streams[LANES];
} graph;
/* What a stream of a capture has seen of the work of the others. */
typedef struct { graph *of; int index; uint32_t seen[LANES]; node *update, **update_end; int group; } lane;
typedef struct { graph *of; uint32_t seen[LANES]; } mark;

static int active; /* captures under way */
static int active_mode;
static graph *current;
static pthread_t capturing_thread;
static __thread int thread_mode = GLOBAL;
static int64_t last_graph;
static void (*tell)(int event, int64_t graph);
static int (*replay)(int64_t node);
static void (*refused)(int code, const char *what);
static void (*save)(void *at, uint64_t bytes);

JOY_PUBLIC void joy_capture_hooks(void (*on_event)(int, int64_t), int (*on_replay)(int64_t),
                                  void (*on_refusal)(int, const char *),
                                  void (*on_write)(void *, uint64_t)) {
  tell = on_event;
  replay = on_replay;
  refused = on_refusal;
  save = on_write;
}

static lane *of(void *stream) { return *joy_stream_lane(stream); }
int joy_capturing(void *stream) {
  if (!active) return 0;
  lane *l = of(stream);
  return l && l->of->status == ACTIVE;
}

static int refuse(graph *g, int code, const char *what) {
  if (g) g->status = VOIDED, g->refusal = code;
  joy_fail("rehearsal device: %s is not allowed while a graph is captured (%d)", what, code);
  if (refused) refused(code, what);
  return code;
}
int joy_capture_refuse(void *stream, int code, const char *what) {
  return joy_capturing(stream) ? refuse(of(stream)->of, code, what) : ACL_OK;
}
int joy_capture_refuse_thread(int code, const char *what) {
  if (!active || thread_mode == RELAXED || active_mode == RELAXED) return ACL_OK;
  int own = pthread_equal(pthread_self(), capturing_thread);
  if (!own && active_mode != GLOBAL) return ACL_OK;
  return current->status == VOIDED ? code : refuse(current, code, what); /* what follows is not said */
}

static lane *join(void *stream, graph *g) {
  if (g->lanes == LANES) return NULL;
  lane *l = calloc(1, sizeof *l);
  l->of = g;
  l->index = g->lanes++;
  g->streams[l->index] = stream;
  *joy_stream_lane(stream) = l;
  return l;
}
static void leave(graph *g) {
  for (int i = 0; i < g->lanes; i++) {
    void **at = joy_stream_lane(g->streams[i]);
    free(*at);
    *at = NULL;
  }
}

static void append(void *stream, node *n) {
  lane *l = of(stream);
  if (l->update_end) { /* a group of nodes gets new ones */
    *l->update_end = n;
    l->update_end = &n->next;
    n->group = l->group;
    return;
  }
  graph *g = l->of;
  n->group = g->group;
  *g->end = n;
  g->end = &n->next;
  l->seen[l->index] = ++g->work[l->index];
}
void joy_capture_work(void *stream, int (*run)(void *), void *arg, size_t bytes) {
  node *n = calloc(1, sizeof *n);
  n->run = run;
  n->number = -1;
  n->arg = malloc(bytes);
  memcpy(n->arg, arg, bytes);
  append(stream, n);
}
void joy_capture_save(void *at, size_t bytes) {
  if (save) save(at, bytes);
}
/* A node that Python runs: `replay` gets its number. */
JOY_PUBLIC int joy_capture_node(void *stream, int64_t number) {
  if (!joy_capturing(stream)) return 0;
  node *n = calloc(1, sizeof *n);
  n->number = number;
  append(stream, n);
  return 1;
}

/* ---- events carry what a stream has seen */
void joy_capture_record(void **kept, void *stream) {
  free(*kept);
  *kept = NULL;
  if (!joy_capturing(stream)) return;
  mark *m = calloc(1, sizeof *m);
  m->of = of(stream)->of;
  memcpy(m->seen, of(stream)->seen, sizeof m->seen);
  *kept = m;
}
void joy_capture_wait(void *stream, void *kept) {
  mark *m = kept;
  if (!active || !m || m->of->status != ACTIVE) return;
  lane *l = of(stream);
  if (!l) l = join(stream, m->of);
  if (!l || l->of != m->of) return;
  for (int i = 0; i < LANES; i++)
    if (m->seen[i] > l->seen[i]) l->seen[i] = m->seen[i];
}

/* ---- the runtime's own functions */
JOY_PUBLIC int aclmdlRICaptureBegin(void *stream, int mode) {
  if (of(stream)) return refuse(NULL, JOY_CONFLICT, "aclmdlRICaptureBegin");
  graph *g = calloc(1, sizeof *g);
  g->end = &g->first;
  g->status = ACTIVE;
  g->mode = mode;
  g->origin = stream;
  g->id = ++last_graph;
  if (!join(stream, g)) return ACL_INVALID_PARAM;
  active_mode = mode;
  current = g;
  capturing_thread = pthread_self();
  active++;
  if (tell) tell(BEGAN, g->id);
  return ACL_OK;
}
JOY_PUBLIC int aclmdlRICaptureGetInfo(void *stream, int *status, void **model) {
  lane *l = active ? of(stream) : NULL;
  if (status) *status = l ? l->of->status : NONE;
  if (model) *model = l ? l->of : NULL;
  return ACL_OK;
}
JOY_PUBLIC int aclmdlRICaptureEnd(void *stream, void **model) {
  lane *l = of(stream);
  *model = NULL;
  if (!l) {
    joy_fail("rehearsal device: this stream is not being captured (%d)", JOY_NOT_CAPTURED);
    return JOY_NOT_CAPTURED;
  }
  graph *g = l->of;
  int code = g->refusal;
  for (int i = 0; i < g->lanes && !code; i++)
    if (l->seen[i] < g->work[i]) {
      code = JOY_UNJOINED;
      joy_fail("rehearsal device: the capture ends before the work of a second stream is joined; "
               "let the captured stream wait for it (%d)", code);
      if (refused) refused(code, "aclmdlRICaptureEnd with a stream that is not joined");
    }
  leave(g);
  active--;
  if (tell) tell(code ? ABANDONED : ENDED, g->id);
  if (code) {
    g->status = VOIDED;
    return code;
  }
  g->status = NONE;
  *model = g;
  return ACL_OK;
}
/* A graph inside a graph: the package of the time refused it by itself (vllm-omni
 * 4519: ERR00007); no answer of the runtime is recorded, so the code is the one whose advice fits. */
JOY_PUBLIC int aclmdlRIExecuteAsync(void *model, void *stream) {
  int code = joy_capture_refuse(stream, JOY_MODEL_CAPTURED, "the replay of another graph");
  if (code) return code;
  if (joy_stream_drain(stream, 1) < 0) return ACL_REMOTE_LOST;
  for (node *n = ((graph *)model)->first; n; n = n->next) {
    int status = n->number < 0 ? n->run(n->arg) : replay ? replay(n->number) : ACL_NOT_SUPPORTED;
    if (status) return status;
  }
  return ACL_OK;
}
JOY_PUBLIC int aclmdlRIExecute(void *model, int32_t ms) {
  (void)ms;
  return aclmdlRIExecuteAsync(model, NULL);
}
JOY_PUBLIC int aclmdlRIDestroy(void *model) {
  if (model && tell) tell(DESTROYED, ((graph *)model)->id); /* small; an event may still point here */
  return ACL_OK;
}
JOY_PUBLIC int aclmdlRIGetId(void *model, uint32_t *id) {
  *id = (uint32_t)((graph *)model)->id;
  return ACL_OK;
}
JOY_PUBLIC int aclmdlRIDebugPrint(void *model) { (void)model; return ACL_OK; }
JOY_PUBLIC int aclmdlRICaptureThreadExchangeMode(int *mode) {
  int before = thread_mode;
  thread_mode = *mode;
  *mode = before;
  return ACL_OK;
}

/* ---- groups of nodes that are given anew between two replays */
typedef struct { graph *of; int number; } group;

JOY_PUBLIC int aclmdlRICaptureTaskGrpBegin(void *stream) {
  if (!joy_capturing(stream)) return JOY_NO_GROUP;
  graph *g = of(stream)->of;
  g->group = ++g->groups;
  return ACL_OK;
}
JOY_PUBLIC int aclmdlRICaptureTaskGrpEnd(void *stream, void **handle) {
  if (!joy_capturing(stream) || !of(stream)->of->group) return JOY_NO_GROUP;
  graph *g = of(stream)->of;
  group *made = malloc(sizeof *made);
  *made = (group){g, g->group};
  g->group = 0;
  *handle = made;
  return ACL_OK;
}
JOY_PUBLIC int aclmdlRICaptureTaskUpdateBegin(void *stream, void *handle) {
  group *named = handle;
  if (of(stream) || !named) return JOY_NO_GROUP;
  lane *l = calloc(1, sizeof *l);
  l->of = named->of;
  l->group = named->number;
  l->update_end = &l->update;
  l->of->status = ACTIVE;
  *joy_stream_lane(stream) = l;
  active++;
  current = l->of;
  if (tell) tell(BEGAN, l->of->id);
  return ACL_OK;
}
JOY_PUBLIC int aclmdlRICaptureTaskUpdateEnd(void *stream) {
  lane *l = of(stream);
  if (!l || !l->update_end) return JOY_NO_GROUP;
  graph *g = l->of;
  node **at = &g->first;
  while (*at && (*at)->group != l->group) at = &(*at)->next;
  node **rest = at;
  while (*rest && (*rest)->group == l->group) rest = &(*rest)->next;
  *l->update_end = *rest;
  *at = l->update ? l->update : *rest;
  g->status = NONE;
  *joy_stream_lane(stream) = NULL;
  free(l);
  active--;
  if (tell) tell(ABANDONED, g->id); /* what was computed on the way is put back */
  return ACL_OK;
}

JOY_PUBLIC int aclrtSetStreamAttribute(void *stream, int which, const void *value) {
  (void)stream; (void)which; (void)value;
  return ACL_OK;
}
