#pragma once
// Shared memory of the Hopper backward, and how its products are divided. kernel.cuh asserts that the plan's bytes are these.
#include <flashgen/attention/backward_params.h>
#include <flashgen/common/ptx.cuh>
#include <flashgen/common/smem_tile.cuh>

namespace flashgen::fa3::backward {

template <class Config>
struct Tiles {
  using Element = typename Config::Element;
  using Q = SmemTile<Element, Config::kBlockM, Config::kHeadDimQK, Config::kChunkQK>;
  using Dout = SmemTile<Element, Config::kBlockM, Config::kHeadDimV, Config::kChunkV>;
  using K = SmemTile<Element, Config::kBlockN, Config::kHeadDimQK, Config::kChunkQK>;
  using V = SmemTile<Element, Config::kBlockN, Config::kHeadDimV, Config::kChunkV>;
  using Ds = SmemTile<Element, Config::kBlockN, Config::kBlockM, Config::kBlockM % 64 == 0 ? 64 : 16>;  // dS^T: a row is a key
  static constexpr int kStepsQK = (Config::kHeadDimQK + 15) / 16;      // products take their K index in steps of 16: zeros past the head dimension
  static constexpr int kStepsV = (Config::kHeadDimV + 15) / 16;
};

// Who computes which part of dQ = dS K: with 128 rows each warpgroup 64 of them, with 64 rows each some columns, whole chunks of K. Other numbers
// of rows are no product's height: then each computes 64 columns, transposed, dQ^T = K^T dS^T.
template <class Config>
struct DqSplit {
  static constexpr bool kByRows = Config::kBlockM == 128, kTransposed = Config::kBlockM % 64 != 0;
  static constexpr int kHeadDim = Config::kHeadDimQK, kChunk = Config::kChunkQK;
  static constexpr int kHalf = (kHeadDim / 2 + kChunk / 2) / kChunk * kChunk;
  static constexpr int kSome = kHalf == 0 ? (kChunk < kHeadDim ? kChunk : kHeadDim) : kHalf < kHeadDim ? kHalf : kHeadDim;
  static constexpr int kFirst = kTransposed ? Config::kBlockM : kByRows ? kHeadDim : kSome;
  static constexpr int kColumns[2] = {kFirst, kTransposed || kByRows ? kFirst : kHeadDim - kFirst};  // of the products of warpgroup 0 and 1
  static_assert(!kTransposed || (kHeadDim == 128 && kChunk == 64), "transposed, each warpgroup has a chunk of K: 64 of 128 columns");
  static constexpr int kPasses = Config::kDqPasses;  // parts of its columns that a warpgroup hands to the dQ writer one after another
  static_assert(kFirst % (8 * kPasses) == 0 && kColumns[1] % (8 * kPasses) == 0, "a pass is whole columns of products");
  // Floats of a pass, and where a warpgroup's first one lies in the accumulator of a block of rows.
  static constexpr int floats(int warpgroup) { return 64 * kColumns[warpgroup] / kPasses; }
  static constexpr int offset(int warpgroup) { return warpgroup * 64 * kFirst; }
};

// Everything advances by one with every block of query rows: one count says where a thread stands in all rings of buffers. Readers wait for
// `phase`, writers for the opposite one, which makes the first writes free (common/pipeline.cuh).
struct Step {
  unsigned index = 0;
  __device__ __forceinline__ Step next() const { return {index + 1}; }
  __device__ __forceinline__ Step before() const { return {index - 1}; }
  template <unsigned kStages>
  __device__ __forceinline__ int stage() const { return index % kStages; }
  template <unsigned kStages>
  __device__ __forceinline__ int phase() const { return index / kStages % 2; }
};

// Threads that add dQ up, in turn: the way to global memory and back takes longer than a block of rows.
constexpr unsigned kDqWriters = 2;

// How a block of keys comes and goes. One a thread block: it is there.
template <bool kPersistent>
struct KeyTurns {
  uint64_t full;

  __device__ __forceinline__ void init_barriers() { ptx::barrier_init(&full, 1); }
};
// One after another: what is there, what is needed no more, and which is next.
template <>
struct KeyTurns<true> {
  int tile;                        // the number of the one that is here, for the consumers; < 0: there is none left
  int next_tile;                   // of the one after it, for who works ahead of them; < 0: likewise
  int next_phase[1 + kDqWriters];  // of next_full, as each of its readers stands. Theirs: they have few registers
  uint64_t k_full, k_empty, v_full, v_empty, next_full, next_empty;

  __device__ __forceinline__ void init_barriers() {
    ptx::barrier_init(&k_full, 1);
    ptx::barrier_init(&k_empty, 256);  // NOTE: every thread has read `tile`
    ptx::barrier_init(&v_full, 1);
    ptx::barrier_init(&v_empty, 2);
    ptx::barrier_init(&next_full, 1);
    ptx::barrier_init(&next_empty, 1 + kDqWriters);
    for (int i = 0; i <= static_cast<int>(kDqWriters); ++i) next_phase[i] = 0;
  }
};

template <class Config>
struct Smem {
  using T = Tiles<Config>;
  using Dq = DqSplit<Config>;
  static constexpr int kStagesQ = Config::kStagesQ, kStagesDo = Config::kStagesDo, kM = Config::kBlockM;

  alignas(1024) char k[T::K::kBytes];
  alignas(1024) char v[T::V::kBytes];
  alignas(1024) char q[kStagesQ * T::Q::kBytes];
  alignas(1024) char dout[kStagesDo * T::Dout::kBytes];
  alignas(1024) char ds[Config::kStagesDs * T::Ds::kBytes];
  alignas(128) float p[Config::kSplitRoles ? Config::kBlockN * kM : 4];  // P^T on its way to the other warpgroup, [score / 4][thread][4]
  alignas(128) float dq[Dq::floats(0) + Dq::floats(1)];                  // [column / 8][thread][4] of each warpgroup
  alignas(128) float lse[kStagesQ][kM];
  alignas(128) float dpsum[kStagesDo][kM];
  KeyTurns<Config::kPersistent> keys;
  // full: the data is there; empty: its readers are done.
  uint64_t q_full[kStagesQ], q_empty[kStagesQ], do_full[kStagesDo], do_empty[kStagesDo], dq_full[2][kDqWriters], dq_empty[2];

  __device__ __forceinline__ void init_barriers() {
    keys.init_barriers();
    for (int i = 0; i < kStagesQ; ++i) {
      ptx::barrier_init(&q_full[i], 1);
      ptx::barrier_init(&q_empty[i], 2);  // a warpgroup arrives once
    }
    for (int i = 0; i < kStagesDo; ++i) {
      ptx::barrier_init(&do_full[i], 1);
      ptx::barrier_init(&do_empty[i], 2);
    }
    for (int i = 0; i < 2; ++i) {
      for (int writer = 0; writer < kDqWriters; ++writer) ptx::barrier_init(&dq_full[i][writer], 128);  // NOTE: every thread writes its part
      ptx::barrier_init(&dq_empty[i], 1);
    }
    ptx::fence_barrier_init();
  }
};

// Named barriers; 0 is __syncthreads.
enum NamedBarrier : int {
  kDsReady = 1,  // dS^T is in shared memory
  kPReady = 2,   // P^T is in shared memory
};

}  // namespace flashgen::fa3::backward
