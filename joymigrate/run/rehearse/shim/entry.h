/* Entry points that keep their arguments as they came: a kernel's signature is not known
 * here. Included once, by the generated stubs. */
#ifndef JOY_ENTRY_H
#define JOY_ENTRY_H

#include "joy.h"

__attribute__((used)) int joy_enter(uint64_t number, joy_frame *frame, const uint64_t *stack) {
  frame->stack = stack;
  return joy_kernel((int)number, frame);
}

#define JOY_STRING_(x) #x
#define JOY_STRING(x) JOY_STRING_(x)
#define JOY_ENTRY_HEAD(name)                                        \
  ".text\n.globl " JOY_STRING(name) "\n.type " JOY_STRING(name) ", %function\n" \
  JOY_STRING(name) ":\n"

#if defined(__x86_64__)
#define JOY_ENTRY(number, name) \
  __asm__(JOY_ENTRY_HEAD(name) "mov $" JOY_STRING(number) ", %eax\njmp joy_entry\n");
__asm__(".text\n.type joy_entry, @function\njoy_entry:\n"
        "push %rbp\nmov %rsp, %rbp\nsub $144, %rsp\n"
        "mov %rdi, 0(%rsp)\nmov %rsi, 8(%rsp)\nmov %rdx, 16(%rsp)\nmov %rcx, 24(%rsp)\n"
        "mov %r8, 32(%rsp)\nmov %r9, 40(%rsp)\n"
        "movsd %xmm0, 64(%rsp)\nmovsd %xmm1, 72(%rsp)\nmovsd %xmm2, 80(%rsp)\n"
        "movsd %xmm3, 88(%rsp)\nmovsd %xmm4, 96(%rsp)\nmovsd %xmm5, 104(%rsp)\n"
        "movsd %xmm6, 112(%rsp)\nmovsd %xmm7, 120(%rsp)\n"
        "mov %eax, %edi\nmov %rsp, %rsi\nlea 16(%rbp), %rdx\ncall joy_enter\nleave\nret\n");
#elif defined(__aarch64__)
#define JOY_ENTRY(number, name) \
  __asm__(JOY_ENTRY_HEAD(name) "mov x9, #" JOY_STRING(number) "\nb joy_entry\n");
__asm__(".text\n.type joy_entry, %function\njoy_entry:\n"
        "stp x29, x30, [sp, #-16]!\nmov x29, sp\nsub sp, sp, #144\n"
        "stp x0, x1, [sp]\nstp x2, x3, [sp, #16]\nstp x4, x5, [sp, #32]\nstp x6, x7, [sp, #48]\n"
        "stp d0, d1, [sp, #64]\nstp d2, d3, [sp, #80]\nstp d4, d5, [sp, #96]\n"
        "stp d6, d7, [sp, #112]\n"
        "mov x0, x9\nmov x1, sp\nadd x2, x29, #16\nbl joy_enter\n"
        "mov sp, x29\nldp x29, x30, [sp], #16\nret\n");
#else
#error "the rehearsal device knows x86-64 and aarch64"
#endif

#endif
