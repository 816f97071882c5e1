// Keeps the package's kernels callable under ours, for torch before 2.9, which has no way to ask for
// them from Python. Compiled against the headers of the installed torch; -fno-access-control gives
// the one private member that is read (the kernel an operator has now).
//
// A kernel of ours is in the dispatcher under a switch: the switch takes the package's kernel when
// this thread asked for it just before, and ours otherwise. Nothing is ever taken out and put back.
#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <vector>

namespace {

struct Kept {
  c10::OperatorHandle op;
  c10::KernelFunction theirs, ours;
};

thread_local const Kept *wanted = nullptr;  // whose own kernel this thread asks for next

struct Switch final : c10::OperatorKernel {
  explicit Switch(const Kept *kept) : kept(kept) {}
  void operator()(const c10::OperatorHandle &op, c10::DispatchKeySet keys,
                  torch::jit::Stack *stack) {
    const bool theirs = wanted == kept;
    if (theirs) wanted = nullptr;
    (theirs ? kept->theirs : kept->ours).callBoxed(op, keys, stack);
  }
  const Kept *kept;
};

const c10::DispatchKey key = c10::DispatchKey::PrivateUse1;
std::vector<c10::RegistrationHandleRAII> switches;  // live as long as the process

c10::KernelFunction now(const c10::OperatorHandle &op) {
  return op.operatorDef_->op.lookup(c10::DispatchKeySet(key));
}

}  // namespace

#define PUBLIC extern "C" __attribute__((visibility("default")))

// The kernel that answers for an operator on the device now; null where there is none.
PUBLIC Kept *joy_keep(const char *name, const char *overload) {
  auto op = c10::Dispatcher::singleton().findSchema({name, overload});
  if (!op || !op->hasComputedKernelForDispatchKey(key)) return nullptr;
  return new Kept{*op, now(*op), {}};
}

// To be called after our kernel was registered over a kept one.
PUBLIC void joy_switch(Kept *kept) {
  kept->ours = now(kept->op);
  switches.push_back(c10::Dispatcher::singleton().registerImpl(
      kept->op.operator_name(), key,
      c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Switch>(kept)), c10::nullopt,
      nullptr, "joymigrate"));
}

// The next call of that operator in this thread takes the package's kernel; null takes it back.
PUBLIC void joy_pass(const Kept *kept) { wanted = kept; }
