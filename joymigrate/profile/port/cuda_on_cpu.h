// CUDA's language on a CPU: included in front of every source of an extension that is built here.
//
// A launch runs its blocks one after the other. The threads of a block are fibers: each runs until it
// waits for its block or its warp, so shared memory, barriers and shuffles mean what they mean on a
// GPU. `CUDA_ON_CPU_BACKWARDS` in the environment turns the order of threads and blocks around: a
// kernel whose result then differs depends on an order that a GPU does not promise. Threads that
// wait for each other for ever raise an error. Textures, cub and cooperative groups are not here: a
// source that uses them does not build.
#pragma once
#include <torch/extension.h>
#include <ucontext.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <type_traits>
#include <vector>

struct uint3 { unsigned x = 0, y = 0, z = 0; };
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct int2 { int x, y; };
struct int4 { int x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;
constexpr int warpSize = 32;
typedef void* cudaStream_t;
enum cudaError_t { cudaSuccess = 0 };
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return "no error"; }
typedef c10::Half __half, half;
typedef c10::BFloat16 __nv_bfloat16;

namespace cuda_on_cpu {
enum class State { runs, warp, block, ended };
struct Thread {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  uint3 place;
  State state;
  alignas(16) char slot[16];
};
constexpr size_t kStack = 1 << 16, kMemory = 1 << 18;
inline std::vector<Thread> threads;
inline size_t current = 0;
inline ucontext_t home;
inline std::function<void()> kernel;
inline std::exception_ptr failure;
alignas(16) inline char memory[kMemory];  // `extern __shared__`

inline void enter() {
  try {
    kernel();
  } catch (...) {
    failure = std::current_exception();
  }
  threads[current].state = State::ended;
}
inline void wait(State state) {
  auto& self = threads[current];
  self.state = state;
  swapcontext(&self.context, &home);
}
// Let the waiting threads of a range go on, if all that still run are waiting there.
inline bool release(size_t from, size_t to, State state) {
  bool any = false;
  for (size_t i = from; i < to; ++i) {
    if (threads[i].state != state && threads[i].state != State::ended) return false;
    any |= threads[i].state == state;
  }
  for (size_t i = from; any && i < to; ++i)
    if (threads[i].state == state) threads[i].state = State::runs;
  return any;
}
inline void run_block(bool backwards) {
  const size_t count = size_t(blockDim.x) * blockDim.y * blockDim.z;
  if (threads.size() < count) threads.resize(count);
  for (size_t i = 0; i < count; ++i) {
    auto& one = threads[i];
    if (!one.stack) one.stack.reset(new char[kStack]);
    getcontext(&one.context);
    one.context.uc_stack.ss_sp = one.stack.get();
    one.context.uc_stack.ss_size = kStack;
    one.context.uc_link = &home;
    makecontext(&one.context, enter, 0);
    one.state = State::runs;
    one.place.x = i % blockDim.x;
    one.place.y = i / blockDim.x % blockDim.y;
    one.place.z = i / blockDim.x / blockDim.y;
  }
  for (;;) {
    bool moved = false, left = false;
    for (size_t k = 0; k < count; ++k) {
      current = backwards ? count - 1 - k : k;
      if (threads[current].state != State::runs) continue;
      threadIdx = threads[current].place;
      swapcontext(&home, &threads[current].context);
      if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
    }
    for (size_t i = 0; i < count; i += warpSize)
      moved |= release(i, std::min(i + warpSize, count), State::warp);
    if (!moved) moved = release(0, count, State::block);
    for (size_t i = 0; i < count; ++i) left |= threads[i].state != State::ended;
    if (!left) return;
    if (!moved) throw std::runtime_error("the threads of a block wait for each other for ever");
  }
}
struct Shape {
  dim3 grid, block;
  Shape(dim3 grid, dim3 block, size_t bytes = 0, cudaStream_t = nullptr) : grid(grid), block(block) {
    if (bytes > kMemory) throw std::runtime_error("a block asks for more than 256 KiB");
  }
};
template <class Kernel, class... Given>
void launch(Shape shape, Kernel function, Given... given) {
  const bool backwards = std::getenv("CUDA_ON_CPU_BACKWARDS") != nullptr;
  kernel = [&] { function(given...); };
  gridDim = shape.grid;
  blockDim = shape.block;
  const size_t blocks = size_t(gridDim.x) * gridDim.y * gridDim.z;
  for (size_t k = 0; k < blocks; ++k) {
    const size_t at = backwards ? blocks - 1 - k : k;
    blockIdx.x = at % gridDim.x;
    blockIdx.y = at / gridDim.x % gridDim.y;
    blockIdx.z = at / gridDim.x / gridDim.y;
    run_block(backwards);
  }
}
// What another thread of the warp holds; a thread that is not there gives back one's own.
template <class T>
T exchange(T value, size_t lane) {
  static_assert(sizeof(T) <= 16, "a shuffle of more than 16 bytes");
  std::memcpy(threads[current].slot, &value, sizeof(T));
  wait(State::warp);
  const size_t from = current / warpSize * warpSize + lane;
  const size_t count = size_t(blockDim.x) * blockDim.y * blockDim.z;
  if (lane < size_t(warpSize) && from < count) std::memcpy(&value, threads[from].slot, sizeof(T));
  wait(State::warp);
  return value;
}
inline int lane() { return current % warpSize; }
}  // namespace cuda_on_cpu

inline void __syncthreads() { cuda_on_cpu::wait(cuda_on_cpu::State::block); }
inline void __syncwarp(unsigned = ~0u) { cuda_on_cpu::wait(cuda_on_cpu::State::warp); }
inline void __threadfence() {}
inline void __threadfence_block() {}
template <class T>
T __shfl_sync(unsigned, T value, int from, int width = 32) {
  return cuda_on_cpu::exchange(value, cuda_on_cpu::lane() / width * width + from % width);
}
template <class T>
T __shfl_down_sync(unsigned, T value, unsigned by, int width = 32) {
  const int at = cuda_on_cpu::lane(), end = at / width * width + width;
  return cuda_on_cpu::exchange(value, at + int(by) < end ? at + by : at);
}
template <class T>
T __shfl_up_sync(unsigned, T value, unsigned by, int width = 32) {
  const int at = cuda_on_cpu::lane(), begin = at / width * width;
  return cuda_on_cpu::exchange(value, at - int(by) >= begin ? at - by : at);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask, int = 32) {
  return cuda_on_cpu::exchange(value, cuda_on_cpu::lane() ^ mask);
}
template <class T, class V>
T atomicAdd(T* place, V value) { T old = *place; *place = old + T(value); return old; }
template <class T, class V>
T gpuAtomicAdd(T* place, V value) { return atomicAdd(place, value); }
template <class T, class V>
T gpuAtomicAddNoReturn(T* place, V value) { return atomicAdd(place, value); }
template <class T, class V>
T atomicSub(T* place, V value) { T old = *place; *place = old - T(value); return old; }
template <class T, class V>
T atomicMax(T* place, V value) { T old = *place; *place = std::max(old, T(value)); return old; }
template <class T, class V>
T atomicMin(T* place, V value) { T old = *place; *place = std::min(old, T(value)); return old; }
template <class T, class V>
T atomicExch(T* place, V value) { return std::exchange(*place, T(value)); }
template <class T, class V>
T atomicCAS(T* place, V expected, V value) {
  T old = *place;
  if (old == T(expected)) *place = T(value);
  return old;
}
template <class T>
T __ldg(const T* place) { return *place; }
template <class A, class B, class = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
std::common_type_t<A, B> min(A a, B b) {
  return std::min<std::common_type_t<A, B>>(a, b);
}
template <class A, class B, class = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
std::common_type_t<A, B> max(A a, B b) {
  return std::max<std::common_type_t<A, B>>(a, b);
}
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __half2float(half x) { return x; }
inline half __float2half(float x) { return x; }

namespace at {
template <class T>
struct RestrictPtrTraits { typedef T* PtrType; };
namespace cuda {
struct Stream {
  operator cudaStream_t() const { return nullptr; }
  cudaStream_t stream() const { return nullptr; }
};
template <class... T>
Stream getCurrentCUDAStream(T...) { return {}; }
struct CUDAGuard {
  template <class... T>
  explicit CUDAGuard(T&&...) {}
};
typedef CUDAGuard OptionalCUDAGuard;
}  // namespace cuda
}  // namespace at
namespace c10::cuda {
using at::cuda::CUDAGuard;
using at::cuda::getCurrentCUDAStream;
using at::cuda::OptionalCUDAGuard;
}  // namespace c10::cuda

#define C10_CUDA_CHECK(call) (void)(call)
#define AT_CUDA_CHECK(call) (void)(call)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() (void)0
#define CUDA_KERNEL_LOOP(i, n) \
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += blockDim.x * gridDim.x)
#define CUDA_1D_KERNEL_LOOP CUDA_KERNEL_LOOP
// What asks whether a tensor lies on the GPU is asked about the CPU, where the kernel runs now.
#define is_cuda() is_cpu()
#define kCUDA kCPU
#define CUDA CPU
