#pragma once
// The threads that add the consumers' parts of dQ to its accumulator in global memory, in bulk, each every kDqWriters-th block of rows. With
// kStoresFirst who comes first to a block of rows stores instead; with kDeterministic all come in the order of the keys.
#include <flashgen/fa3/backward/key_tile.cuh>
#include <flashgen/fa3/backward/smem.cuh>

namespace flashgen::fa3::backward {

template <class Config>
struct DqWriter {
  using Dq = DqSplit<Config>;
  static constexpr int kParts = Dq::kColumns[1] > 0 ? 2 : 1;
  // Of a block's state: lower half, blocks of keys that have claimed it; upper half, those whose part stands there: all of them with
  // kDeterministic, else the one that stored.
  static constexpr long long kClaim = 1, kAdded = 1ll << 32;

  // Adds a pass of one warpgroup, which is there.
  template <int kWarpgroup>
  __device__ __forceinline__ static void add(Smem<Config>& smem, bool first, float* accum, int pass) {
    float* const to = accum + Dq::offset(kWarpgroup) + pass * Dq::floats(kWarpgroup);
    float const* const from = smem.dq + kWarpgroup * Dq::floats(0);
    if (first) ptx::row_store(to, from, Dq::floats(kWarpgroup) * 4);
    else ptx::row_add(to, from, Dq::floats(kWarpgroup) * 4);
    ptx::store_commit();
  }

  // Waits until this block of keys may add to the rows; whether it is to store.
  __device__ __forceinline__ static bool await(long long* state, int turn) {
    if constexpr (Config::kDeterministic) {
      while (ptx::load_acquire(state) >> 32 != turn) {}
      return Config::kStoresFirst && turn == 0;
    } else if constexpr (!Config::kStoresFirst) {
      return false;
    } else {
      long long before = ptx::add_acquire(state, kClaim);
      bool const first = before == 0;
      if (!first) {
        while (before < kAdded) before = ptx::load_acquire(state);
      }
      return first;
    }
  }

  __device__ __forceinline__ static void run(BackwardParams const& params, Smem<Config>& smem) {
    unsigned index = 0;
    for_each_tile(params, smem, [&](KeyTile<Config> const& tile) { add_all(params, smem, tile, index); });
    ptx::store_wait();
  }

  __device__ __forceinline__ static void add_all(BackwardParams const& params, Smem<Config>& smem, KeyTile<Config> const& tile, unsigned& index) {
    tile.for_each_m_block(params, [&](int head, int m_block) {
      int thread = threadIdx.x;  // asked for anew: registers are scarcer here than instructions
      ptx::opaque(thread);
      unsigned const writer = thread / 32 - 1;
      if (index++ % kDqWriters != writer) return;
      unsigned const passed = (index - 1) / kDqWriters * Dq::kPasses;  // by this writer
      int64_t const at = tile.m_tile(params, head, m_block);
      float* const accum = params.dq_accum + at * (Config::kBlockM * Config::kHeadDimQK);
      bool first = false;
      if constexpr (Config::kDeterministic) {  // its turn may come before its part is there: nobody waits for who looks
        first = await(params.dq_state + at, tile.turn(params, m_block));
        ptx::fence_async_proxy_all();
      }
      CUTE_UNROLL
      for (int pass = 0; pass < Dq::kPasses; ++pass) {
        ptx::barrier_wait(&smem.dq_full[0][writer], (passed + pass) % 2);
        if constexpr (!Config::kDeterministic && Config::kStoresFirst) {  // not before all of it is there: others wait for who claims a block
          if constexpr (kParts == 2) ptx::barrier_wait(&smem.dq_full[1][writer], (passed + pass) % 2);
          first = await(params.dq_state + at, 0);
          ptx::fence_async_proxy_all();
        }
        add<0>(smem, first, accum, pass);
        if constexpr (kParts == 2) {
          ptx::barrier_wait(&smem.dq_full[1][writer], (passed + pass) % 2);
          add<1>(smem, first, accum, pass);
        }
        ptx::store_wait_read_but<kParts - 1>();
        ptx::barrier_arrive(&smem.dq_empty[0]);
        if constexpr (kParts == 2) {
          ptx::store_wait_read_but<0>();
          ptx::barrier_arrive(&smem.dq_empty[1]);
        }
      }
      if (Config::kDeterministic || first) {
        ptx::store_wait();
        ptx::fence_async_proxy_all();
        ptx::add_release(params.dq_state + at, kAdded);
      }
    });
  }
};

}  // namespace flashgen::fa3::backward
