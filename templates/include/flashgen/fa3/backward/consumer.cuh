#pragma once
// What every consumer warpgroup does: its products, its part of dQ, its gradients' way out.
#include <flashgen/common/wgmma.cuh>
#include <flashgen/fa3/backward/epilogue.cuh>
#include <flashgen/fa3/backward/scores.cuh>

namespace flashgen::fa3::backward {

// kDqColumns: of this warpgroup's part of dQ (DqSplit).
template <class Config, int kDqColumns>
struct Consumer {
  using Element = typename Config::Element;
  using T = Tiles<Config>;
  using S = Scores<Config>;
  using Dq = DqSplit<Config>;
  static constexpr int kM = Config::kBlockM, kN = Config::kBlockN, kDqCount = kDqColumns / 2;  // may be 0
  static constexpr int kChunksOfK = Dq::kTransposed ? 1 : Dq::kFirst / T::K::kWidth;  // to the second warpgroup's columns of dQ
  using DqPart = float[kDqCount == 0 ? 1 : kDqCount];

  BackwardParams const& params;
  Smem<Config>& smem;
  int const warpgroup, thread;
  KeyTile<Config> const tile;
  int const first_row;   // of this warpgroup's 64 keys in the block
  Step step;
  unsigned const end;  // of this tile's steps

  __device__ __forceinline__ Consumer(BackwardParams const& params, Smem<Config>& smem, int warpgroup, int thread, int tile_index, Step step)
      : params(params),
        smem(smem),
        warpgroup(warpgroup),
        thread(thread),
        tile(params, tile_index),
        first_row(Config::kSplitRoles ? 0 : warpgroup * 64),
        step(step),
        end(step.index + tile.blocks(params)) {}

  // After wgmma_wait and a barrier that follows the last ordinary read one thread may speak for its warpgroup.
  __device__ __forceinline__ void release(uint64_t* barrier) {
    if (thread == 0) ptx::barrier_arrive(barrier);
  }
  __device__ __forceinline__ int q() const { return step.stage<Config::kStagesQ>(); }
  __device__ __forceinline__ int dout() const { return step.stage<Config::kStagesDo>(); }
  __device__ __forceinline__ int ds() const { return step.stage<Config::kStagesDs>(); }
  __device__ __forceinline__ void await_q() { ptx::barrier_wait(&smem.q_full[q()], step.phase<Config::kStagesQ>()); }
  __device__ __forceinline__ void await_dout() { ptx::barrier_wait(&smem.do_full[dout()], step.phase<Config::kStagesDo>()); }
  __device__ __forceinline__ void release_q() { release(&smem.q_empty[q()]); }
  __device__ __forceinline__ void release_dout() { release(&smem.do_empty[dout()]); }

  // This warpgroup's 64 keys as the operand of S^T = K Q^T.
  using KeyOperand = uint32_t[Config::kKeysInRegisters ? T::kStepsQK * 4 : 1];
  __device__ __forceinline__ void load_keys(KeyOperand& keys) const {
    if constexpr (Config::kKeysInRegisters) {
      Element const* const k = reinterpret_cast<Element const*>(smem.k);
      int const lane = thread % 32, row = first_row + thread / 32 * 16 + lane % 16, column = lane / 16 * 8;  // whose address this lane gives
      CUTE_UNROLL
      for (int i = 0; i < T::kStepsQK; ++i)
        ptx::load_matrix_x4(k + typename T::K::Layout{}(row, 16 * i + column), keys[4 * i], keys[4 * i + 1], keys[4 * i + 2], keys[4 * i + 3]);
    }
  }
  // S^T = K Q^T, keys from registers. Half as much goes through shared memory, all of whose bandwidth a product of 64x64 from there takes; nothing
  // of a block is left to do while the warps are held.
  __device__ __forceinline__ void issue_scores(float (&s)[kM / 2], KeyOperand& keys) {
    Descriptor const b = T::Q::k_major(smem.q);
    wgmma_hold(s);
    wgmma_hold(keys);
    wgmma_fence();
    CUTE_UNROLL
    for (int i = 0; i < T::kStepsQK; ++i)
      Wgmma<Element, kM>::template rs<Major::kK>(s, keys[4 * i], keys[4 * i + 1], keys[4 * i + 2], keys[4 * i + 3],
                                                 b.at(q() * T::Q::kBytes + T::Q::k_major_step(i)), i > 0);
    wgmma_commit();
  }
  // From shared memory.
  __device__ __forceinline__ void issue_scores(float (&s)[kM / 2]) {
    Descriptor const a = T::K::k_major(smem.k + first_row * T::K::kRowBytes), b = T::Q::k_major(smem.q);
    wgmma_hold(s);
    wgmma_fence();
    CUTE_UNROLL
    for (int i = 0; i < T::kStepsQK; ++i)
      Wgmma<Element, kM>::ss(s, a.at(T::K::k_major_step(i)), b.at(q() * T::Q::kBytes + T::Q::k_major_step(i)), i > 0);
    wgmma_commit();
  }
  // dP^T = V dO^T
  __device__ __forceinline__ void issue_dp(float (&dp)[kM / 2]) {
    Descriptor const a = T::V::k_major(smem.v + first_row * T::V::kRowBytes), b = T::Dout::k_major(smem.dout);
    wgmma_hold(dp);
    wgmma_fence();
    CUTE_UNROLL
    for (int i = 0; i < T::kStepsV; ++i)
      Wgmma<Element, kM>::ss(dp, a.at(T::V::k_major_step(i)), b.at(dout() * T::Dout::kBytes + T::Dout::k_major_step(i)), i > 0);
    wgmma_commit();
  }
  // acc += pair * rows of a tile: dV += P^T dO, dK += dS^T Q
  template <class Tile, int kHeadDim>
  __device__ __forceinline__ void issue_gradient(float (&acc)[kHeadDim / 2], uint32_t (&pair)[kM / 4], char const* stages, int stage) {
    Descriptor const b = Tile::mn_major(stages);
    wgmma_hold(acc);
    wgmma_hold(pair);
    wgmma_fence();
    CUTE_UNROLL
    for (int i = 0; i < kM / 16; ++i)
      Wgmma<Element, kHeadDim>::template rs<Major::kMN>(acc, pair[4 * i], pair[4 * i + 1], pair[4 * i + 2], pair[4 * i + 3],
                                                        b.at(stage * Tile::kBytes + Tile::mn_major_step(i)), 1);
    wgmma_commit();
  }
  __device__ __forceinline__ void issue_dv(float (&dv)[Config::kHeadDimV / 2], uint32_t (&p)[kM / 4]) {
    issue_gradient<typename T::Dout, Config::kHeadDimV>(dv, p, smem.dout, dout());
  }
  __device__ __forceinline__ void issue_dk(float (&dk)[Config::kHeadDimQK / 2], uint32_t (&pair)[kM / 4]) {
    issue_gradient<typename T::Q, Config::kHeadDimQK>(dk, pair, smem.q, q());
  }
  // This warpgroup's part of dQ = dS K, or of dQ^T = K^T dS^T.
  __device__ __forceinline__ void issue_dq(DqPart& dq) {
    Descriptor const ds_tile = T::Ds::mn_major(smem.ds + (Dq::kByRows ? warpgroup * T::Ds::kChunkBytes : 0));
    Descriptor const k_tile = T::K::mn_major(smem.k + (Dq::kByRows ? 0 : warpgroup * kChunksOfK * T::K::kChunkBytes));
    wgmma_hold(dq);
    wgmma_fence();
    CUTE_UNROLL
    for (int i = 0; i < kN / 16; ++i) {
      uint64_t const s = ds_tile.at(ds() * T::Ds::kBytes + T::Ds::mn_major_step(i)), k = k_tile.at(T::K::mn_major_step(i));
      Wgmma<Element, kDqColumns>::template ss<Major::kMN, Major::kMN>(dq, Dq::kTransposed ? k : s, Dq::kTransposed ? s : k, i > 0);
    }
    wgmma_commit();
  }
  // Writes a pass of dQ where its writer finds it, once the pass before has been read; pass_dq then tells the writer.
  __device__ __forceinline__ void write_dq(DqPart const& dq, int pass = 0) {
    if constexpr (kDqColumns > 0) {
      constexpr int kCount = kDqCount / Dq::kPasses;
      float4* const to = reinterpret_cast<float4*>(smem.dq + warpgroup * Dq::floats(0)) + thread;
      ptx::barrier_wait(&smem.dq_empty[warpgroup], (step.index * Dq::kPasses + pass) % 2 ^ 1);
      CUTE_UNROLL
      for (int j = 0; j < kCount / 4; ++j) {
        float const* const from = dq + pass * kCount + 4 * j;
        to[j * 128] = make_float4(from[0], from[1], from[2], from[3]);
      }
    }
  }
  __device__ __forceinline__ void pass_dq(Step at) { pass_dq(smem, warpgroup, at); }
  __device__ __forceinline__ static void pass_dq(Smem<Config>& smem, int warpgroup, Step at) {
    if constexpr (kDqColumns > 0) {
      ptx::fence_async_proxy();
      ptx::barrier_arrive(&smem.dq_full[warpgroup][at.stage<kDqWriters>()]);
    }
  }

  // Both, pass by pass. Of one pass the writer hears behind the next block's first product (pass_dq_before), which hides the fence.
  __device__ __forceinline__ void hand_over(DqPart const& dq) {
    CUTE_UNROLL
    for (int pass = 0; pass < Dq::kPasses; ++pass) {
      write_dq(dq, pass);
      if constexpr (Dq::kPasses > 1) pass_dq(step);
    }
  }
  __device__ __forceinline__ void pass_dq_before() {
    if constexpr (Dq::kPasses == 1) {
      if (step.index > 0) pass_dq(step.before());
    }
  }

  // Whether blocks of scores are masked: kSome asks for each.
  enum Masked { kNone, kAll, kSome };
  template <Masked kMasked = kSome>
  __device__ __forceinline__ void exponentiate(float (&s)[kM / 2], int m_block) {
    S::exponentiate(s, smem.lse[q()], params.scale_log2, thread);
    if constexpr (kMasked != kNone) {
      if (kMasked == kAll || is_masked(m_block)) S::mask(s, params, tile.n_block * kN + first_row, m_block, thread);
    }
  }
  __device__ __forceinline__ bool is_masked(int m_block) const { return S::Mask::template partial<kM, kN>(params, m_block, tile.n_block); }
  __device__ __forceinline__ void await_keys() { ptx::barrier_wait(&smem.keys.full, 0); }

  // Registers are scarce in the loop: what only the end wants is computed there.
  __device__ __forceinline__ KeyTile<Config> tile_again() const {
    int block = blockIdx.x;
    if constexpr (Config::kPersistent) block = ptx::load_shared(smem.keys.tile);
    else ptx::opaque(block);
    return KeyTile<Config>(params, block);
  }
  __device__ __forceinline__ int thread_again() const {
    int again = thread;
    if constexpr (Config::kPersistent) ptx::opaque(again);
    return again;
  }
  __device__ __forceinline__ void store_dk(KeyTile<Config> const& at, float const (&dk)[Config::kHeadDimQK / 2]) {
    int const thread = thread_again();
    int const key = at.n_block * kN + first_row;
    Element* const to = static_cast<Element*>(params.dk) + at.batch * params.dk_batch_stride + at.head_kv * params.dk_head_stride + key * params.dk_row_stride;
    store_gradient<Element, Config::kHeadDimQK>(to, params.dk_row_stride, params.seqlen_k - key, dk, params.scale, thread);
  }
  __device__ __forceinline__ void store_dv(KeyTile<Config> const& at, float const (&dv)[Config::kHeadDimV / 2]) {
    int const thread = thread_again();
    int const key = at.n_block * kN + first_row;
    Element* const to = static_cast<Element*>(params.dv) + at.batch * params.dv_batch_stride + at.head_kv * params.dv_head_stride + key * params.dv_row_stride;
    store_gradient<Element, Config::kHeadDimV>(to, params.dv_row_stride, params.seqlen_k - key, dv, 1.f, thread);
  }
};

template <int kCount>
__device__ __forceinline__ void clear(float (&acc)[kCount]) {
  CUTE_UNROLL
  for (int i = 0; i < kCount; ++i) acc[i] = 0.f;
}

}  // namespace flashgen::fa3::backward
