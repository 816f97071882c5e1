/* The few C++ functions of the chip's graph library that run while an older torch_npu is loaded:
 * static objects describe operators of a graph that a rehearsal never makes. Written as C functions
 * under their mangled names; both classes hold a shared pointer, which must be empty. Any other
 * C++ function that a release links against is generated (build.py) and does nothing. */
#include "joy.h"

#include <string.h>

typedef struct { void *pointer, *count; } shared_pointer;
typedef struct { void *table; shared_pointer implementation; } graph_operator;

/* ge::AscendString::AscendString(const char *), its text and its order. The text is kept for good:
 * nobody counts who holds it, and a process makes few of them. */
JOY_PUBLIC void _ZN2ge12AscendStringC1EPKc(shared_pointer *self, const char *text) {
  self->pointer = text ? strdup(text) : NULL;
  self->count = NULL;
}
JOY_PUBLIC const char *_ZNK2ge12AscendString9GetStringEv(const shared_pointer *self) {
  return self->pointer ? self->pointer : "";
}
JOY_PUBLIC int _ZNK2ge12AscendStringltERKS0_(const shared_pointer *one, const shared_pointer *two) {
  return strcmp(_ZNK2ge12AscendString9GetStringEv(one), _ZNK2ge12AscendString9GetStringEv(two)) < 0;
}
/* ge::Operator::Operator(const char *, const char *), and of two AscendString */
JOY_PUBLIC void _ZN2ge8OperatorC2EPKcS2_(graph_operator *self) {
  memset(&self->implementation, 0, sizeof self->implementation);
}
JOY_PUBLIC void _ZN2ge8OperatorC2ERKNS_12AscendStringES3_(graph_operator *self) {
  memset(&self->implementation, 0, sizeof self->implementation);
}

/* The graph engine (torchair): it imports, and says that it can't start. Its message is a
 * std::string of the older layout, returned where the caller has room for it; on other processors
 * that place is not an argument, and the message stays empty text of the caller's own making. */
#define GRAPH_FAILED 0xffffffffu

JOY_PUBLIC uint32_t _ZN2ge12GEInitializeERKSt3mapINS_12AscendStringES1_St4lessIS1_ESaISt4pairIKS1_S1_EEE(
    void *options) {
  (void)options;
  return GRAPH_FAILED;
}

static struct {
  size_t length, capacity;
  int64_t users; /* so many that nobody frees it */
  char text[96];
} message = {0, 0, 1 << 30, "rehearsal: the chip's graph engine is not simulated; run the model eagerly"};

JOY_PUBLIC void *_ZN2ge13GEGetErrorMsgEv(char **result) {
  message.length = message.capacity = strlen(message.text);
  *result = message.text;
  return result;
}
