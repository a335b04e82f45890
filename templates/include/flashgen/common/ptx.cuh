#pragma once
// Every inline PTX instruction but wgmma (common/wgmma.cuh): barriers, bulk tensor copies, matrix loads and stores, register reallocation, ex2.
#include <cute/numeric/integral_constant.hpp>
#include <cutlass/bfloat16.h>
#include <cutlass/half.h>
#include <flashgen/common/tensor_map.h>

namespace flashgen::ptx {

// 32-bit address in the shared window of a pointer to shared memory.
__device__ __forceinline__ uint32_t shared_address(void const* pointer) { return static_cast<uint32_t>(__cvta_generic_to_shared(pointer)); }

// ---- mbarriers (64-bit, in shared memory) ----
__device__ __forceinline__ void barrier_init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// Makes initialised barriers visible to the copy engine.
__device__ __forceinline__ void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void barrier_arrive_expect(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, int phase) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE;\n"
      "bra WAIT;\n"
      "DONE:\n"
      "}" ::"r"(shared_address(barrier)), "r"(phase) : "memory");
}

// ---- named barriers (0 is __syncthreads) ----
__device__ __forceinline__ void named_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
__device__ __forceinline__ void named_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// ---- bulk tensor copies over (column, row, head, batch) ----
enum class CacheHint : uint64_t { kEvictFirst = 0x12F0000000000000, kEvictLast = 0x14F0000000000000 };

__device__ __forceinline__ void prefetch(TensorMap const& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }

__device__ __forceinline__ void tensor_load(TensorMap const& map, uint64_t* barrier, void* to, CacheHint hint, int column, int row, int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(
          shared_address(to)),
      "l"(&map), "r"(shared_address(barrier)), "r"(column), "r"(row), "r"(head), "r"(batch), "l"(static_cast<uint64_t>(hint))
      : "memory");
}
__device__ __forceinline__ void tensor_store(TensorMap const& map, void const* from, int column, int row, int head, int batch) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map), "r"(shared_address(from)), "r"(column),
               "r"(row), "r"(head), "r"(batch)
               : "memory");
}
__device__ __forceinline__ void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until this thread's committed stores have read their shared memory.
__device__ __forceinline__ void store_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
// The same while the latest kPending groups may still read.
template <int kPending>
__device__ __forceinline__ void store_wait_read_but() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory"); }
// Waits until this thread's committed stores and additions stand in global memory. Their completion orders them before ordinary accesses (PTX ISA,
// "Async proxy": an implicit proxy fence follows it), so that a release may follow at once.
__device__ __forceinline__ void store_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// ---- bulk copies and additions of plain rows, in multiples of 16 bytes ----
__device__ __forceinline__ void row_load(void const* from, uint64_t* barrier, void* to, int bytes) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)), "l"(from), "r"(bytes),
               "r"(shared_address(barrier))
               : "memory");
}
__device__ __forceinline__ void row_store(void* to, void const* from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)), "r"(bytes) : "memory");
}
// to += from, float by float, each addition atomic.
__device__ __forceinline__ void row_add(float* to, void const* from, int bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)), "r"(bytes) : "memory");
}

// ---- counters in global memory that order blocks ----
__device__ __forceinline__ long long load_acquire(long long const* counter) {
  long long value;
  asm volatile("ld.acquire.gpu.global.s64 %0, [%1];" : "=l"(value) : "l"(counter) : "memory");
  return value;
}
__device__ __forceinline__ void add_release(long long* counter, long long value) {
  asm volatile("red.release.gpu.global.add.u64 [%0], %1;" ::"l"(counter), "l"(value) : "memory");
}
// Gives what stood there before.
__device__ __forceinline__ long long add_acquire(long long* counter, long long value) {
  long long before;
  asm volatile("atom.acquire.gpu.global.add.u64 %0, [%1], %2;" : "=l"(before) : "l"(counter), "l"(value) : "memory");
  return before;
}
// Orders ordinary accesses to global memory before later ones of the copy engine. Without a state space it would be a memory barrier of the whole
// GPU (MEMBAR.ALL.GPU) and a fence of shared memory as well: 1 to 20 % of a backward.
__device__ __forceinline__ void fence_async_proxy_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// Orders ordinary writes to shared memory before later reads by the copy engine or the tensor cores.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Loads or stores 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrix_x4(void const* row, uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(shared_address(row)) : "memory");
}
__device__ __forceinline__ void store_matrix_x4(void* row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
__device__ __forceinline__ void store_matrix_x2(void* row, uint32_t a, uint32_t b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(shared_address(row)), "r"(a), "r"(b) : "memory");
}

// ---- registers ----
template <int kRegisters>
__device__ __forceinline__ void release_registers_to() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters)); }
template <int kRegisters>
__device__ __forceinline__ void claim_registers_up_to() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters)); }

// ---- arithmetic ----
// NOTE: not volatile, so that ptxas may schedule it; a volatile ex2 made wide tiles spill.
__device__ __forceinline__ float ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two floats to one register of 16-bit elements, low half first.
template <class Element>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t packed;
  if constexpr (cute::is_same_v<Element, cutlass::bfloat16_t>) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// Hides from the compiler where a number comes from, so that what follows from it is computed where it is wanted and not kept in registers.
__device__ __forceinline__ void opaque(int& x) { asm volatile("" : "+r"(x)); }

// What other threads write and read between barriers.
__device__ __forceinline__ void store_shared(int& at, int x) { *const_cast<int volatile*>(&at) = x; }
__device__ __forceinline__ int load_shared(int const& at) { return *const_cast<int const volatile*>(&at); }

// A value that all threads of a warp have, and the compiler knows that they do: what follows from it lives in uniform registers.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(~0u, x, 0); }
__device__ __forceinline__ int uniform_again(int x) {
  opaque(x);
  return uniform(x);
}
__device__ __forceinline__ void exit() { asm volatile("exit;"); }

// True in one thread of a converged warp.
__device__ __forceinline__ bool elect_one() {
  uint32_t elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(elected));
  return elected != 0;
}

}  // namespace flashgen::ptx
