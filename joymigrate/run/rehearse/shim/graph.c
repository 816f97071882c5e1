/* The few C++ functions of the chip's graph library that run while an older torch_npu is loaded:
 * static objects describe operators of a graph that a rehearsal never makes. Written as C functions
 * under their mangled names; both classes hold a shared pointer, which must be empty. Any other
 * C++ function that a release links against is generated (build.py) and does nothing. */
#include "joy.h"

#include <string.h>

typedef struct { void *pointer, *count; } shared_pointer;
typedef struct { void *table; shared_pointer implementation; } graph_operator;

/* ge::AscendString::AscendString(const char *) */
JOY_PUBLIC void _ZN2ge12AscendStringC1EPKc(shared_pointer *self, const char *text) {
  (void)text;
  memset(self, 0, sizeof *self);
}
/* ge::Operator::Operator(const char *, const char *), and of two AscendString */
JOY_PUBLIC void _ZN2ge8OperatorC2EPKcS2_(graph_operator *self) {
  memset(&self->implementation, 0, sizeof self->implementation);
}
JOY_PUBLIC void _ZN2ge8OperatorC2ERKNS_12AscendStringES3_(graph_operator *self) {
  memset(&self->implementation, 0, sizeof self->implementation);
}
